"""Every format, on a tiny checkpoint in the hub's layout, against its reference in `tests/support/prm_cases.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reason.scorers.base import PrmAdapter
from reason.scorers.formats.math_shepherd import MathShepherd
from reason.scorers.formats.qwen import QwenPrm
from reason.scorers.formats.rlhflow import RlhflowPrm
from reason.scorers.formats.skywork import SkyworkPrm
from reason.scorers.heads import LabelTokensHead
from reason.scorers.incremental import IncrementalScorer
from reason.scorers.read_limit import ReadLimit
from search.tree import Step
from tests.support import tiny_prm as tiny
from tests.support.prm_cases import CASES, QUESTION, SOLUTIONS, FormatCase, save_skywork

FRAGMENTS = ["Let", " x = 12", ".", "\n\n", "\n", " ", "+", "-", "ки", "\\boxed{11}", "?", "5", "数", "'s"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map("".join)


@dataclass(frozen=True)
class Ready:
    case: FormatCase
    model: tiny.Tiny
    reader: tiny.PlainReader

    def bind(self, limit: int = 512) -> IncrementalScorer:
        tokenizer = self.model.tokenizer
        return IncrementalScorer(
            reader=self.reader,
            step_format=self.case.adapter.build_format(tokenizer),
            limit=ReadLimit.from_setting(limit),
            question=QUESTION,
            prompt=tuple(tokenizer.encode(QUESTION)),
        )

    def path(self, solution: Sequence[str]) -> list[Step]:
        return [Step(tuple(self.model.tokenizer.encode(text)), text) for text in solution]

    def expected(self, solution: Sequence[str]) -> list[float]:
        return self.case.reference(self.model, QUESTION, solution)


@pytest.fixture(scope="module", params=list(CASES))
def ready(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ready:
    case = CASES[request.param]
    model = case.save(tmp_path_factory.mktemp(request.param) / "checkpoint")
    label_token_ids = case.adapter.label_token_ids(model.tokenizer)
    parts = case.adapter.head.load_parts(str(model.folder), label_token_ids, torch.float32)
    return Ready(case, model, tiny.PlainReader(model.folder, parts.trunk, parts.head))


def test_format_scores_equal_the_reference(ready: Ready) -> None:
    scored = asyncio.run(ready.bind().score([ready.path(s) for s in SOLUTIONS]))
    for solution, scores in zip(SOLUTIONS, scored.scores, strict=True):
        assert scores is not None
        assert scores == pytest.approx(ready.expected(solution), abs=1e-5)
        assert len(set(scores)) > 1, "a model this random tells steps apart"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(solution=st.lists(TEXTS, min_size=1, max_size=4))
def test_format_scores_of_any_text_equal_the_reference(ready: Ready, solution: list[str]) -> None:
    """Merges across the seam between two steps would show here."""
    [scores] = asyncio.run(ready.bind().score([ready.path(solution)])).scores
    assert scores == pytest.approx(ready.expected(solution), abs=1e-5)


def test_scores_step_by_step_equal_scores_of_whole_paths(ready: Ready) -> None:
    whole = asyncio.run(ready.bind().score([ready.path(s) for s in SOLUTIONS]))
    scorer, spent = ready.bind(), 0
    for depth in range(1, 5):
        paths = [ready.path(s[:depth]) for s in SOLUTIONS]
        scored = asyncio.run(scorer.score(paths))
        spent += scored.usage.scored_tokens
        for scores, final in zip(scored.scores, whole.scores, strict=True):
            assert scores is not None
            assert final is not None
            assert scores == pytest.approx(final[: len(scores)], abs=1e-5)
    assert spent == whole.usage.scored_tokens, "a child runs its own tokens only"


def test_path_too_long_for_the_model_is_not_scored(ready: Ready) -> None:
    short, long = ready.path(SOLUTIONS[0][:1]), ready.path(["Then 2x + 7 = 31.\n\n"] * 60)
    scored = asyncio.run(ready.bind(limit=300).score([long, short]))
    assert scored.scores[0] is None
    assert scored.scores[1] is not None


def test_checkpoint_without_its_head_is_refused(ready: Ready, tmp_path: Path) -> None:
    """transformers fills what is missing with random numbers and logs a line about it."""
    if isinstance(ready.case.adapter.head, LabelTokensHead):
        pytest.skip("a language model's head may be tied")
    from safetensors.torch import load_file, save_file

    weights = load_file(ready.model.folder / "model.safetensors")
    trunk = {name: tensor for name, tensor in weights.items() if name.startswith("model.")}
    save_file(trunk, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((ready.model.folder / "config.json").read_bytes())
    with pytest.raises(ValueError, match="lacks"):
        ready.case.adapter.head.load_parts(str(tmp_path), (), torch.float32)


def test_skywork_format_reads_a_blank_line_as_step_token_too(tmp_path: Path) -> None:
    """As in Arbitrage; a step may then have several lines."""
    model = save_skywork(tmp_path / "checkpoint")
    form = SkyworkPrm(step_token="\n\n").build_format(model.tokenizer)
    step = Step((1,), "Let x = 12.\nThen 2x = 24.\n\n")
    assert form.encode_step(step, first=True) == (
        *model.tokenizer.encode("Let x = 12.\nThen 2x = 24."),
        model.tokenizer.encode("\n\n")[-1],
    )


def test_math_shepherd_ids_are_looked_up_in_context() -> None:
    """The published ids 12902, 648 and 387 are those of ▁ки, ▁+ and ▁-, not of the bare signs."""
    tokenizer = tiny.sentence_piece_tokenizer(["ки", "+", "-"])
    adapter = MathShepherd()
    assert list(adapter.label_token_ids(tokenizer)) == tokenizer.convert_tokens_to_ids(["▁+", "▁-"])
    form = adapter.build_format(tokenizer)
    for first in (True, False):
        assert form.encode_step(Step((1,), "x = 1.\n\n"), first=first)[-1] == tokenizer.convert_tokens_to_ids("▁ки")


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (QwenPrm(), "<extra_0>"),
        (MathShepherd(), "ки"),
        (RlhflowPrm(), "chat template"),
    ],
)
def test_tokenizer_of_another_kind_is_refused(adapter: PrmAdapter, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapter.build_format(tiny.byte_tokenizer(["<|endoftext|>"]))


def test_chat_template_that_rewrites_old_turns_is_refused() -> None:
    """Otherwise a child's encoding would not begin with its parent's, and cached scores would be wrong."""
    counting = "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    tokenizer = tiny.byte_tokenizer(["<|im_start|>"], counting)
    with pytest.raises(ValueError, match="every turn alike"):
        RlhflowPrm().build_format(tokenizer)

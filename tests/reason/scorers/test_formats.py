"""Every format, on a tiny checkpoint in the hub's layout, against its reference: the whole solution as one text,
tokenised in one go, one solution at a time, no cache, scores picked out by token id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from reason.scorers.base import Adapter
from reason.scorers.formats.math_shepherd import MathShepherd
from reason.scorers.formats.qwen import QwenPrm
from reason.scorers.formats.rlhflow import RlhflowPrm
from reason.scorers.formats.skywork import SkyworkPrm
from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.heads import open_parts
from reason.scorers.incremental import BoundPrm
from search.tree import Step
from tests.support import tiny_prm as tiny

QUESTION = "How many apples does Sam have?"
SOLUTIONS = [
    ["Let x = 12.\n\n", "Then 2x + 7 = 31.\n\n", "The answer is \\boxed{31}."],
    ["Let x = 12.\n\n", "\\[ 2x \\]\n= 24\n\n", "5 apples.\n\n", "So c = 5; the answer is: 52"],
    ["Let x = 12.\n\n", "- first -\n\n", "\n\n", "  we get 4 - 2 = 2.\n\n"],
    ["+7\n\n", "ünïcode ки 数\n\n"],
]
FRAGMENTS = ["Let", " x = 12", ".", "\n\n", "\n", " ", "+", "-", "ки", "\\boxed{11}", "?", "5", "数", "'s"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map("".join)
Reference = Callable[[tiny.Tiny, str, Sequence[str]], list[float]]


@dataclass(frozen=True)
class Case:
    adapter: Adapter
    save: Callable[[Path], tiny.Tiny]
    reference: Reference


def softmax_at(outputs: np.ndarray, positions: Sequence[int], columns: Sequence[int]) -> list[float]:
    """Probability of the first of the columns."""
    picked = torch.tensor(outputs[list(positions)][:, list(columns)]).double()
    return picked.softmax(-1)[:, 0].tolist()


def where(tokens: Sequence[int], token: int) -> list[int]:
    return [i for i, t in enumerate(tokens) if t == token]


def flat(step: str) -> str:
    """A step on one line."""
    return " ".join(filter(None, (line.strip() for line in step.split("\n"))))


# Qwen2.5-Math-PRM


def save_qwen(folder: Path) -> tiny.Tiny:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"]
    tokenizer = tiny.byte_tokenizer(special, tiny.CHATML, pad_token="<|endoftext|>")
    score = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    return tiny.save_with_head(folder, tokenizer, "Qwen2ForProcessRewardModel", nn.ModuleDict({"score": score}))


def qwen_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    messages = [
        {"role": "system", "content": "Please reason step by step, and put your final answer within \\boxed{}."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": "<extra_0>".join(s.strip() for s in steps) + "<extra_0>"},
    ]
    text = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    tokens = model.tokenizer.encode(text)
    tags = where(tokens, model.tokenizer.convert_tokens_to_ids("<extra_0>"))
    return softmax_at(model.outputs(tokens), tags, [1, 0])


# Skywork-o1-Open-PRM


def save_skywork(folder: Path) -> tiny.Tiny:
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"], bos_token="<|endoftext|>")
    summary = nn.ModuleDict({"summary": nn.Linear(32, 1)})
    return tiny.save_with_head(folder, tokenizer, "Qwen2ForPrmModel", nn.ModuleDict({"v_head": summary}))


def skywork_reference(model: tiny.Tiny, question: str, steps: Sequence[str], step_token: str = "\n") -> list[float]:
    encode = model.tokenizer.encode
    tokens, ends = encode(f"{model.tokenizer.bos_token}{question}\n"), []
    for step in steps:
        tokens += [*encode(flat(step)), encode(step_token)[-1]]
        ends.append(len(tokens) - 1)
    return torch.tensor(model.outputs(tokens)[ends, 0]).double().sigmoid().tolist()


# Math-Shepherd


def save_shepherd(folder: Path) -> tiny.Tiny:
    tokenizer = tiny.sentence_piece_tokenizer(["ки", "+", "-"])
    return tiny.save_causal(folder, tokenizer, tiny.mistral_config(tokenizer))


def shepherd_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    lines = [f"{flat(step)} ки" for step in steps]
    tokens = [model.tokenizer.bos_token_id, *model.tokenizer.encode(f"{question} " + "\n".join(lines))]
    words = model.tokenizer.convert_tokens_to_ids(["▁+", "▁-"])
    tags = where(tokens, model.tokenizer.convert_tokens_to_ids("▁ки"))
    newline = model.tokenizer.convert_tokens_to_ids("<0x0A>")  # a tag inside a step is not the end of one
    tags = [i for i in tags if i + 1 == len(tokens) or tokens[i + 1] == newline]
    return softmax_at(model.outputs(tokens), tags, words)


# RLHFlow


def save_rlhflow(folder: Path) -> tiny.Tiny:
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = tiny.byte_tokenizer(special, tiny.LLAMA_CHAT, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    return tiny.save_causal(folder, tokenizer, tiny.llama_config(tokenizer))


def rlhflow_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    words = [model.tokenizer.encode("+")[-1], model.tokenizer.encode("-")[-1]]
    scores: list[float] = []
    conversation: list[dict[str, str]] = []
    for i, step in enumerate(steps):
        text = f"{question} {step.strip()}" if i == 0 else step.strip()
        conversation += [{"role": "user", "content": text}, {"role": "assistant", "content": "+"}]
        tokens = model.tokenizer.encode(model.tokenizer.apply_chat_template(conversation, tokenize=False))
        assert tokens[-2] == words[0], "the answer is the last word but one"
        scores += softmax_at(model.outputs(tokens), [len(tokens) - 3], words)
    return scores


# Token classification, trained with TRL


def save_trl(folder: Path) -> tiny.Tiny:
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"], eos_token="<|endoftext|>")
    return tiny.save_classifier(folder, tokenizer, tiny.qwen_config(tokenizer, num_labels=2))


def trl_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    encode = model.tokenizer.encode
    tokens, ends = encode(question) + encode("\n\n"), []
    for step in steps:
        tokens += encode(step.strip()) + encode("\n\n")
        ends.append(len(tokens) - 1)
    return softmax_at(model.outputs(tokens), ends, [1, 0])


# Token classification over the writer's own tokens, of steps and (the bundled model) of tokens


def shared_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    tokens, ends = model.tokenizer.encode(question), []
    for step in steps:
        tokens += model.tokenizer.encode(step)
        ends.append(len(tokens) - 1)
    return softmax_at(model.outputs(tokens), ends, [1, 0])


def judged_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    tokens = model.tokenizer.encode(question)
    start, scores = len(tokens), []
    for step in steps:
        tokens += model.tokenizer.encode(step)
        scores.append(float(np.prod(softmax_at(model.outputs(tokens), range(start, len(tokens)), [1, 0]))))
    return scores


CASES = {
    "qwen": Case(QwenPrm(), save_qwen, qwen_reference),
    "skywork": Case(SkyworkPrm(), save_skywork, skywork_reference),
    "math_shepherd": Case(MathShepherd(), save_shepherd, shepherd_reference),
    "rlhflow": Case(RlhflowPrm(), save_rlhflow, rlhflow_reference),
    "trl": Case(TokenClassifier(), save_trl, trl_reference),
    "shared": Case(TokenClassifier(reads="tokens"), save_trl, shared_reference),
    "judged": Case(TokenClassifier(reads="tokens", judges="tokens"), save_trl, judged_reference),
}


@dataclass(frozen=True)
class Ready:
    case: Case
    model: tiny.Tiny
    reader: tiny.PlainReader

    def bind(self, limit: int = 512) -> BoundPrm:
        tokenizer = self.model.tokenizer
        return BoundPrm(
            reader=self.reader,
            form=self.case.adapter.format(tokenizer),
            limit=limit,
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
    words = case.adapter.words(model.tokenizer)
    parts = open_parts(str(model.folder), case.adapter.head, words, dtype=torch.float32)
    return Ready(case, model, tiny.PlainReader(parts.trunk, parts.head))


def test_scores_equal_the_reference(ready: Ready) -> None:
    scored = asyncio.run(ready.bind().score([ready.path(s) for s in SOLUTIONS]))
    for solution, scores in zip(SOLUTIONS, scored.scores, strict=True):
        assert scores is not None
        assert scores == pytest.approx(ready.expected(solution), abs=1e-5)
        assert len(set(scores)) > 1, "a model this random tells steps apart"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(solution=st.lists(TEXTS, min_size=1, max_size=4))
def test_any_text_scores_as_in_the_reference(ready: Ready, solution: list[str]) -> None:
    """Merges across the seam between two steps would show here."""
    [scores] = asyncio.run(ready.bind().score([ready.path(solution)])).scores
    assert scores == pytest.approx(ready.expected(solution), abs=1e-5)


def test_step_by_step_equals_all_at_once(ready: Ready) -> None:
    whole = asyncio.run(ready.bind().score([ready.path(s) for s in SOLUTIONS]))
    scorer, spent = ready.bind(), 0
    for depth in range(1, 5):
        paths = [ready.path(s[:depth]) for s in SOLUTIONS]
        scored = asyncio.run(scorer.score(paths))
        spent += scored.spent.scored_tokens
        for scores, final in zip(scored.scores, whole.scores, strict=True):
            assert scores is not None
            assert final is not None
            assert scores == pytest.approx(final[: len(scores)], abs=1e-5)
    assert spent == whole.spent.scored_tokens, "a child runs its own tokens only"


def test_a_path_too_long_for_the_model_is_not_scored(ready: Ready) -> None:
    short, long = ready.path(SOLUTIONS[0][:1]), ready.path(["Then 2x + 7 = 31.\n\n"] * 60)
    scored = asyncio.run(ready.bind(limit=300).score([long, short]))
    assert scored.scores[0] is None
    assert scored.scores[1] is not None


def test_a_checkpoint_without_its_head_is_refused(ready: Ready, tmp_path: Path) -> None:
    """transformers fills what is missing with random numbers and logs a line about it."""
    if ready.case.adapter.head == "two_words":
        pytest.skip("a language model's head may be tied")
    from safetensors.torch import load_file, save_file

    weights = load_file(ready.model.folder / "model.safetensors")
    trunk = {name: tensor for name, tensor in weights.items() if name.startswith("model.")}
    save_file(trunk, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((ready.model.folder / "config.json").read_bytes())
    with pytest.raises(ValueError, match="lacks"):
        open_parts(str(tmp_path), ready.case.adapter.head, (), dtype=torch.float32)


def test_skywork_reads_a_blank_line_as_step_token_too(tmp_path: Path) -> None:
    """As in Arbitrage; a step may then have several lines."""
    model = save_skywork(tmp_path / "checkpoint")
    form = SkyworkPrm(step_token="\n\n").format(model.tokenizer)
    step = Step((1,), "Let x = 12.\nThen 2x = 24.\n\n")
    assert form.piece(step, first=True) == (
        *model.tokenizer.encode("Let x = 12.\nThen 2x = 24."),
        model.tokenizer.encode("\n\n")[-1],
    )


def test_shepherds_tag_and_words_are_looked_up_in_context() -> None:
    """The published ids 12902, 648 and 387 are those of ▁ки, ▁+ and ▁-, not of the bare signs."""
    tokenizer = tiny.sentence_piece_tokenizer(["ки", "+", "-"])
    adapter = MathShepherd()
    assert list(adapter.words(tokenizer)) == tokenizer.convert_tokens_to_ids(["▁+", "▁-"])
    form = adapter.format(tokenizer)
    for first in (True, False):
        assert form.piece(Step((1,), "x = 1.\n\n"), first=first)[-1] == tokenizer.convert_tokens_to_ids("▁ки")


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (QwenPrm(), "<extra_0>"),
        (MathShepherd(), "ки"),
        (RlhflowPrm(), "chat template"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(adapter: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapter.format(tiny.byte_tokenizer(["<|endoftext|>"]))


def test_a_chat_template_that_rewrites_old_turns_is_refused() -> None:
    """Then a child's encoding would not begin with its parent's, and cached scores would be wrong."""
    counting = "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    tokenizer = tiny.byte_tokenizer(["<|im_start|>"], counting)
    with pytest.raises(ValueError, match="every turn alike"):
        RlhflowPrm().format(tokenizer)

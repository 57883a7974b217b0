"""Configured scorers over the prefill engine against the plain references."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from decoding.prefill import PrefillEngine
from reason.scorers.formats.math_shepherd import MathShepherd
from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.prm import PrmScorer
from search.strategy import StepScores
from search.tree import Step
from tests.support import tiny_prm as tiny
from tests.support.pretended_gpu import real_or_pretended_gpu
from tests.support.prm_cases import CASES, SOLUTIONS, FormatCase

QUESTIONS = ["How many apples does Sam have?", "What is 5+8?", "Let x = 12. Find 2x."]


class Run:
    """A case's checkpoint, opened by the scorer."""

    def __init__(self, case: FormatCase, folder: Path) -> None:
        self.case, self.model = case, case.save(folder)
        self.scorer = PrmScorer(adapter=case.adapter, path=str(folder), device="cpu", dtype="float32", kv_mib=8)

    def path(self, solution: list[str]) -> list[Step]:
        return [Step(tuple(self.model.tokenizer.encode(text)), text) for text in solution]

    async def grow(self, question: str) -> tuple[Sequence[StepScores | None], int]:
        """Returns the scores of the solutions, scored after every step, and the scored tokens."""
        bound = self.scorer.bind(question, tuple(self.model.tokenizer.encode(question)))
        spent = 0
        for depth in range(1, 1 + max(map(len, SOLUTIONS))):
            scored = await bound.score([self.path(s[:depth]) for s in SOLUTIONS])
            spent += scored.usage.scored_tokens
        return scored.scores, spent


@pytest.fixture(scope="module", params=list(CASES))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    made = Run(CASES[request.param], tmp_path_factory.mktemp(request.param) / "checkpoint")
    yield made
    made.scorer.close()


def reader_of(run: Run) -> PrefillEngine:
    reader = run.scorer.loaded_prm.reader
    assert isinstance(reader, PrefillEngine)
    return reader


def test_concurrent_problems_score_as_their_references(run: Run) -> None:
    async def together() -> list[tuple[Sequence[StepScores | None], int]]:
        return list(await asyncio.gather(*map(run.grow, QUESTIONS)))

    for question, (scores, _) in zip(QUESTIONS, asyncio.run(together()), strict=True):
        for solution, got in zip(SOLUTIONS, scores, strict=True):
            assert got == pytest.approx(run.case.reference(run.model, question, solution), abs=1e-4)
    reader_of(run).assert_invariants()


def test_scorer_usage_equals_the_tokens_that_the_model_ran(run: Run) -> None:
    """A child step runs its own tokens: nothing before it is run again."""
    run.scorer.close()
    _, spent = asyncio.run(run.grow(QUESTIONS[0]))
    assert spent == reader_of(run).processed_tokens


def test_closed_scorer_loads_again(run: Run) -> None:
    first, _ = asyncio.run(run.grow(QUESTIONS[0]))
    run.scorer.close()
    again, _ = asyncio.run(run.grow(QUESTIONS[0]))
    for one, two in zip(first, again, strict=True):
        assert one == pytest.approx(two, abs=1e-5)


def test_unsupported_model_family_is_named_before_weights_load(tmp_path: Path) -> None:
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"])
    tokenizer.save_pretrained(tmp_path)
    config = {"architectures": ["Qwen2ForTokenClassification"], "model_type": "gpt2", "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="gpt2 model; a reward model may be qwen2, qwen3, llama or mistral"):
        PrmScorer(adapter=TokenClassifier(), path=str(tmp_path)).load()


def test_mistral_prm_is_never_run_beyond_its_window(tmp_path: Path) -> None:
    """Within the window its attention is full attention, the only kind that the engine has."""
    tokenizer = tiny.sentence_piece_tokenizer(["ки", "+", "-"])
    config = tiny.mistral_config(tokenizer)
    config.sliding_window = 40
    tiny.save_causal(tmp_path, tokenizer, config)
    scorer = PrmScorer(adapter=MathShepherd(), path=str(tmp_path), device="cpu", kv_mib=1)
    steps = [Step((1,), "Let x = 12.\n\n")] * 9
    scored = asyncio.run(scorer.bind("How many?", (1,)).score([steps, steps[:2]]))
    assert scorer.loaded_prm.limit.max_tokens == 40
    assert scored.scores[0] is None
    assert scored.scores[1] is not None
    scorer.close()


def test_path_beyond_the_kv_cache_is_not_scored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A path larger than the whole pool does not end the search."""
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"])
    config = tiny.qwen_config(tokenizer, num_labels=2)
    config.max_position_embeddings = 100_000
    tiny.save_classifier(tmp_path, tokenizer, config)
    scorer = PrmScorer(adapter=TokenClassifier(reads="tokens"), path=str(tmp_path), device="cpu", kv_mib=1)
    long = [Step((5,) * 5000, "x")]
    scored = asyncio.run(scorer.bind("?", (1,)).score([long, [Step((5, 6), "y")]]))
    assert re.search(r"reads at most \d+ tokens \(scorer.kv_mib=1\); raise scorer.kv_mib, or set", caplog.text)
    assert scored.scores[0] is None
    assert scored.scores[1] is not None
    scorer.close()


def test_target_with_another_vocabulary_is_refused_at_load(tmp_path: Path) -> None:
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"])
    tiny.save_classifier(tmp_path, tokenizer, tiny.qwen_config(tokenizer, num_labels=2))
    scorer = PrmScorer(adapter=TokenClassifier(reads="tokens"), path=str(tmp_path), device="cpu", kv_mib=1)
    scorer.load(writer=tokenizer)
    with pytest.raises(ValueError, match="vocabulary is another one"):
        scorer.load(writer=tiny.byte_tokenizer(["<|another|>"]))
    scorer.close()


def test_classifier_with_three_labels_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"])
    tiny.save_classifier(tmp_path, tokenizer, tiny.qwen_config(tokenizer, num_labels=3))
    with pytest.raises(ValueError, match="3 labels"):
        PrmScorer(adapter=TokenClassifier(), path=str(tmp_path), device="cpu").load()


def test_scores_on_a_gpu_are_close_to_those_on_the_cpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with real_or_pretended_gpu(monkeypatch):
        on_gpu = PrmScorer(
            adapter=run.case.adapter, path=str(run.model.folder), device="cuda", dtype="float32", kv_mib=8
        )
        question = QUESTIONS[0]
        bound = on_gpu.bind(question, tuple(run.model.tokenizer.encode(question)))
        scored = asyncio.run(bound.score([run.path(s) for s in SOLUTIONS]))
        for solution, got in zip(SOLUTIONS, scored.scores, strict=True):
            assert got == pytest.approx(run.case.reference(run.model, question, solution), abs=1e-2)
        on_gpu.close()

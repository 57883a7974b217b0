"""Outcome reward models on tiny random checkpoints in the hub's format, against transformers' own classes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from reason.scorers.formats.outcome import OutcomeReward
from reason.scorers.orm import OutcomeScorer
from search.tree import Step
from tests.support import tiny_prm as tiny
from tests.support.prm_cases import QUESTION, SOLUTIONS


def make_tokenizer() -> PreTrainedTokenizerFast:
    return tiny.byte_tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], tiny.CHATML, pad_token="<|endoftext|>")


def make_config(family: str, tokenizer: PreTrainedTokenizerFast, labels: int) -> Qwen2Config | LlamaConfig:
    known: dict[str, Any] = {"num_labels": labels, "pad_token_id": tokenizer.pad_token_id}
    kind = Qwen2Config if family == "qwen2" else LlamaConfig
    return kind(vocab_size=len(tokenizer), **tiny.SIZES, **known)


def save(folder: Path, labels: int, family: str = "qwen2") -> tiny.Tiny:
    tokenizer = make_tokenizer()
    return tiny.save_outcome(folder, tokenizer, make_config(family, tokenizer, labels))


def make_path(solution: list[str]) -> list[Step]:
    return [Step((i,), text) for i, text in enumerate(solution)]


@pytest.fixture(scope="module", params=[("qwen2", 1), ("qwen2", 2), ("llama", 1)], ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    family, labels = request.param
    return save(tmp_path_factory.mktemp("orm") / "checkpoint", labels, family)


@pytest.fixture
def scorer(model: tiny.Tiny) -> Iterator[OutcomeScorer]:
    with closing(OutcomeScorer(adapter=OutcomeReward(), path=str(model.folder), device="cpu", kv_mib=4)) as opened:
        yield opened


def expected(model: tiny.Tiny, solution: list[str], temperature: float = 1.0) -> float:
    """The score by transformers' model on the whole conversation."""
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "".join(solution).strip()}]
    ids = model.tokenizer.apply_chat_template(turns, tokenize=False)
    logits = model.outputs(model.tokenizer.encode(ids))[0].astype(np.float64) / temperature
    odds = logits[0] if len(logits) == 1 else logits[1] - logits[0]
    return float(1 / (1 + np.exp(-odds)))


def test_scores_are_those_of_the_class_in_transformers(model: tiny.Tiny, scorer: OutcomeScorer) -> None:
    scored = asyncio.run(scorer.bind(QUESTION, ()).score([make_path(solution) for solution in SOLUTIONS]))
    for solution, scores in zip(SOLUTIONS, scored.scores, strict=True):
        assert scores is not None
        assert list(scores[:-1]) == [None] * (len(solution) - 1)
        assert scores[-1] == pytest.approx(expected(model, solution), abs=1e-5)
    assert len({scores[-1] for scores in scored.scores if scores}) == len(SOLUTIONS)


def test_temperature_divides_the_logits(model: tiny.Tiny) -> None:
    adapter = OutcomeReward(temperature=4.0)
    with closing(OutcomeScorer(adapter=adapter, path=str(model.folder), device="cpu", kv_mib=4)) as flat:
        (scores,) = asyncio.run(flat.bind(QUESTION, ()).score([make_path(SOLUTIONS[0])])).scores
    assert scores is not None
    assert scores[-1] == pytest.approx(expected(model, SOLUTIONS[0], 4.0), abs=1e-5)


def test_text_is_read_once_and_a_long_one_is_not_scored(
    model: tiny.Tiny, scorer: OutcomeScorer, caplog: pytest.LogCaptureFixture
) -> None:
    problem = scorer.bind(QUESTION, ())
    path = make_path(SOLUTIONS[0])
    first, again = (asyncio.run(problem.score([path, path])) for _ in range(2))
    assert first.scores == again.scores
    assert first.usage.scored_tokens > 0 == again.usage.scored_tokens
    too_long = make_path(["x " * 600])
    for _ in range(2):
        assert asyncio.run(problem.score([too_long, path])).scores == [None, first.scores[0]]
    assert caplog.text.count("is not scored") == 1
    assert (
        "in its config.json); set scorer.path to a model with a longer window, or set scorer_reads=window"
        in caplog.text
    )


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    three = save(tmp_path / "three", 3)
    with pytest.raises(ValueError, match="has 3 labels, an outcome reward model has 1 or 2"):
        OutcomeScorer(adapter=OutcomeReward(), path=str(three.folder), device="cpu", kv_mib=4).load()
    with pytest.raises(ValueError, match="OutcomeReward reads Qwen2ForSequenceClassification"):
        OutcomeScorer(adapter=OutcomeReward(), path="bundled:prm").validate()
    with pytest.raises(ValueError, match="temperature must be a number > 0"):
        OutcomeReward(temperature=0)

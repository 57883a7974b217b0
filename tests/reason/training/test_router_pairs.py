"""A router for any pair of models: what its classifier reads, and the command that records and trains."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import reason
from decoding.core import Tokens
from reason.commands import train_router
from reason.models.byte_tokenizer import ByteTokenizer
from reason.routing.base import score_step
from reason.routing.classifier import RouterClassifier, encode_pair
from reason.routing.pairs import StepPair, read_pairs
from reason.scorers.incremental import IncrementalScorer
from reason.scorers.read_limit import ReadLimit
from search.tree import Step
from tests.support import tiny_prm
from tests.support.tiny_writer import save_writer

STEPS = [Step(tuple(b"one\n\n"), "one\n\n", model="draft"), Step(tuple(b"two\n\n"), "two\n\n", model="target")]
LAST = Step(tuple(b"three\n\n"), "three\n\n", model="draft")
PROMPT = tuple(b"What? ")
PAIR = StepPair(
    "p", PROMPT + STEPS[0].tokens + STEPS[1].tokens, LAST.tokens, LAST.tokens, 0.1, 0.2, None, (5, 5),
    question="What?", texts=("one\n\n", "two\n\n", "three\n\n"), authors=("draft", "target"),
)  # fmt: skip


class NotedReader:
    """A `Reader` that keeps what it read."""

    def __init__(self) -> None:
        self.sequences: list[Tokens] = []

    @property
    def longest(self) -> Tokens:
        return max(self.sequences, key=len)

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[np.ndarray]:
        self.sequences += sequences
        return [np.zeros((len(tokens) - start, 2)) for tokens, start in zip(sequences, starts, strict=True)]


@pytest.mark.parametrize("reads", ["tokens", "text"])
@pytest.mark.parametrize("history", ["none", "authors"])
def test_classifier_learns_from_the_ids_that_it_routes_by(reads: Any, history: str) -> None:
    step_format = RouterClassifier(reads=reads, history=history).build_format(ByteTokenizer())
    reader = NotedReader()
    scorer = IncrementalScorer(
        reader=reader, step_format=step_format, limit=ReadLimit.from_setting(500), question="What?", prompt=PROMPT
    )
    asyncio.run(score_step(scorer, STEPS[:1], STEPS[1]))
    asyncio.run(score_step(scorer, STEPS, LAST))
    assert encode_pair(PAIR, step_format) == reader.longest
    text = bytes(reader.longest).decode()
    marks = ["Model 0: one", "Model 1: two", "Model 0: three"]
    assert [mark in text for mark in marks] == [history == "authors"] * 3
    assert (reader.longest == PAIR.prefix + PAIR.small_step) == ((reads, history) == ("tokens", "none"))


def test_same_step_of_another_author_is_read_anew() -> None:
    step_format = RouterClassifier(history="authors").build_format(ByteTokenizer())
    reader = NotedReader()
    scorer = IncrementalScorer(
        reader=reader, step_format=step_format, limit=ReadLimit.from_setting(500), question="", prompt=PROMPT
    )
    for author in ("target", "draft", None, "target"):
        asyncio.run(score_step(scorer, [replace(STEPS[0], model=author)], LAST))
    first_steps = [bytes(tokens).decode().removeprefix("What? ").split("\n\n")[0] for tokens in reader.sequences]
    assert first_steps == ["Model 1: one", "Model 0: one", "one"]


def test_pairs_of_earlier_releases_are_refused_where_texts_are_needed() -> None:
    old = replace(PAIR, question=None, texts=(), authors=())
    with pytest.raises(ValueError, match="collect them anew"):
        encode_pair(old, RouterClassifier(reads="text").build_format(ByteTokenizer()))
    row = {key: value for key, value in old.to_json().items() if key not in ("question", "texts", "authors")}
    assert StepPair.from_json(json.loads(json.dumps(row))) == old


def test_unknown_input_is_named() -> None:
    with pytest.raises(ValueError, match="history must be one of none, authors"):
        RouterClassifier(history="names")


def save_other_writer(folder: Path, source: Path) -> Path:
    """The writer with a little noise on its weights, so that it writes other steps."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(source)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    model.save_pretrained(folder)
    for file in source.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def pair_settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of three random checkpoints, of which the reward model has a vocabulary of its own."""
    folder = tmp_path_factory.mktemp("pair")
    target = save_writer(folder / "target")
    small = save_other_writer(folder / "small", target)
    tokenizer = tiny_prm.byte_tokenizer(["<|endoftext|>"], eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    prm = tiny_prm.save_classifier(folder / "prm", tokenizer, tiny_prm.qwen_config(tokenizer, num_labels=2))
    task = folder / "task.jsonl"
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(6)]
    task.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "model=hf", f"model.path={target}", "model.prompt.raw='{question}'", f"small.path={small}", "search.n=2",
        "search.sampling.max_tokens=24", "scorer=token_classification", f"scorer.path={prm.folder}",
        "+task=gsm8k", f"task.path={task}",
    ]  # fmt: skip


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["train_router", *arguments])
    return train_router.run_program()


def test_one_command_makes_a_router_with_a_tokenizer_of_its_own(
    pair_settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "router"
    options = ["--out", str(out), "--epochs", "1", "--held-out", "0.34", "--history", "authors"]
    assert run_command(monkeypatch, "pair", *pair_settings, *options) == 0
    pairs = list(read_pairs(out / "pairs.jsonl"))
    assert {"draft", "target"} <= {author for pair in pairs for author in pair.authors}
    assert json.loads((out / "report.json").read_text())["pairs"] == len(pairs)
    config = json.loads((out / "config.json").read_text())
    assert config["router_input"] == {"reads": "text", "history": "authors"}
    routed = [s for s in pair_settings if not s.startswith(("scorer", "+task", "task"))]
    settings = [*routed, "scorer=none", "search=self_consistency", "speculation=off", "router=arbitrage"]
    with reason.load(*settings, f"router.path={out}", "router.threshold=0.5") as solver:
        steps = [node.step for node in solver.solve("What is 2 + 1?").tree.nodes]
    scores = [step.routing_score for step in steps if step.routing_score is not None]
    assert scores
    assert all(0 < score < 1 for score in scores)
    for step in steps:
        if step.routing_score is not None:
            assert step.model == ("target" if step.routing_score > 0.5 else "draft")


def test_pair_without_a_model_to_begin_as_is_refused(
    pair_settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [s for s in pair_settings if not s.startswith("scorer")]
    assert run_command(monkeypatch, "pair", *settings, "scorer=oracle", "--out", str(tmp_path / "r")) == 2
    assert "set --base" in capsys.readouterr().out

"""A language model as a verifier: a step is as good as its least expected token."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoding.core import Tokens
from reason.models.checkpoint import find_model
from reason.scorers.formats.expectation import Expectation
from reason.scorers.prm import PrmScorer
from reason.tasks.synthetic.draw import distinct
from reason.tasks.synthetic.error_injection import SteadyPen
from reason.tasks.synthetic.exercise import Exercise
from reason.training.tokenizer import render
from search.steps import split_steps
from search.tree import Step

SOURCE = find_model("bundled:verifier").source
WEIGHTS = {"recurrence": 1.0, "digit_sums": 1.0}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SOURCE)


@pytest.fixture(scope="module")
def scorer() -> Iterator[PrmScorer]:
    scorer = PrmScorer(adapter=Expectation(), path="bundled:verifier", dtype="float32")
    yield scorer
    scorer.close()


def encoded(tokenizer: Any, text: str) -> Tokens:
    return tuple(tokenizer.encode(text))


def steps_of(tokenizer: Any, solution: str) -> list[Step]:
    tokens = encoded(tokenizer, solution)
    return split_steps(tokens, (0.0,) * len(tokens), lambda ids: str(tokenizer.decode(list(ids))), "\n\n")


def exercises(count: int) -> list[Exercise]:
    source = distinct(3, "heldout", weights=WEIGHTS, difficulties=(2, 3))
    return [next(source) for _ in range(count)]


@torch.no_grad()
def reference(model: Any, prompt: Tokens, steps: list[Step]) -> list[float]:
    """The definition, one whole sequence at a time, by transformers alone."""
    ids = torch.tensor([[*prompt, *(t for step in steps for t in step.tokens)]])
    log_p = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    scores, at = [], len(prompt)
    for step in steps:
        ratios = [log_p[at - 1 + i, token] - log_p[at - 1 + i].max() for i, token in enumerate(step.tokens)]
        scores.append(float(torch.stack(ratios).min().exp()))
        at += len(step.tokens)
    return scores


def test_scores_are_those_of_the_definition_however_they_arrive(tokenizer: Any, scorer: PrmScorer) -> None:
    model = AutoModelForCausalLM.from_pretrained(SOURCE, dtype=torch.float32).eval()
    rng = random.Random(0)
    for exercise in exercises(3):
        prompt = encoded(tokenizer, render(exercise.question))
        paths = [steps_of(tokenizer, exercise.write(SteadyPen(), rng)) for _ in range(3)]
        bound = scorer.bind(exercise.question, prompt)
        for depth in (1, 2, None):  # a step at a time, then the rest
            scored = asyncio.run(bound.score([path[:depth] for path in paths]))
            for path, scores in zip(paths, scored.scores, strict=True):
                assert scores == pytest.approx(reference(model, prompt, path[:depth]), abs=1e-4)

"""A language model as a verifier: the score of a step is that of its least expected token."""

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
from reason.scorers.formats.expectation import ExpectationPrm
from reason.scorers.prm import PrmScorer
from reason.tasks.synthetic.draw import distinct_exercises
from reason.tasks.synthetic.exercise import ExactWriter, Exercise
from reason.training.tokenizer import render_prompt
from search.tree import Step
from tests.support.solutions import encode_plain, split_solution

SOURCE = find_model("bundled:verifier").source
WEIGHTS = {"recurrence": 1.0, "digit_sums": 1.0}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SOURCE)


@pytest.fixture(scope="module")
def scorer() -> Iterator[PrmScorer]:
    scorer = PrmScorer(adapter=ExpectationPrm(), path="bundled:verifier", dtype="float32")
    yield scorer
    scorer.close()


def exercises(count: int) -> list[Exercise]:
    source = distinct_exercises(3, "heldout", weights=WEIGHTS, difficulties=(2, 3))
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


def test_expectation_scores_equal_the_definition_step_by_step_and_at_once(tokenizer: Any, scorer: PrmScorer) -> None:
    model = AutoModelForCausalLM.from_pretrained(SOURCE, dtype=torch.float32).eval()
    rng = random.Random(0)
    for exercise in exercises(3):
        prompt = encode_plain(tokenizer, render_prompt(exercise.question))
        paths = [split_solution(tokenizer, exercise.write_solution(ExactWriter(), rng)) for _ in range(3)]
        bound = scorer.bind(exercise.question, prompt)
        for depth in (1, 2, None):  # a step at a time, then the rest
            scored = asyncio.run(bound.score([path[:depth] for path in paths]))
            for path, scores in zip(paths, scored.scores, strict=True):
                assert scores == pytest.approx(reference(model, prompt, path[:depth]), abs=1e-4)

"""The bundled reward model: a step is as good as its least expected token."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoding.core import Tokens
from reason.checkpoint import find_model
from reason.prm.expectation import Expectation
from reason.prm.scorer import PrmScorer
from reason.tasks.synthetic.draw import distinct
from reason.tasks.synthetic.exercise import Exercise
from reason.tasks.synthetic.pen import SlippingPen, SteadyPen
from reason.training.tokenizer import render
from search.steps import split_steps
from search.tree import Step

SOURCE = find_model("bundled:prm").source
WEIGHTS = {"recurrence": 1.0, "digit_sums": 1.0}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SOURCE)


@pytest.fixture(scope="module")
def scorer() -> Iterator[PrmScorer]:
    scorer = PrmScorer(adapter=Expectation(), path="bundled:prm", dtype="float32")
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


def test_it_knows_a_slip_from_a_right_step(tokenizer: Any, scorer: PrmScorer) -> None:
    """On average: the worst step of a solution with a slip scores far below the worst of a right one."""
    rng = random.Random(1)
    right, wrong = [], []
    for exercise in exercises(24):
        steady = SteadyPen()
        order = rng.random()
        good = exercise.write(steady, random.Random(order))
        bad = exercise.write(SlippingPen(rng.randrange(steady.written), rng), random.Random(order))
        if not bad.startswith(good) and "boxed" in bad:
            bound = scorer.bind(exercise.question, encoded(tokenizer, render(exercise.question)))
            scored = asyncio.run(bound.score([steps_of(tokenizer, good), steps_of(tokenizer, bad)]))
            assert scored.scores[0] is not None
            assert scored.scores[1] is not None
            right.append(min(scored.scores[0]))
            wrong.append(min(scored.scores[1]))
    assert len(wrong) > 10
    assert sum(wrong) / len(wrong) < 0.5 * sum(right) / len(right)


def test_the_bundled_models_share_one_vocabulary() -> None:
    """And load with transformers' own classes, with the ids they were trained on."""
    text = render("x0 = 12. Find x3.") + "We get x1: 5*12=60, 60+8=68.\n\nThe answer is \\boxed{20}."
    ids = {name: AutoTokenizer.from_pretrained(find_model(f"bundled:{name}").source).encode(text) for name in NAMES}
    assert ids["target"] == ids["draft"] == ids["prm"]
    pieces = [AutoTokenizer.from_pretrained(SOURCE).decode([i]) for i in ids["prm"]]
    assert "".join(pieces) == text
    assert "\n\n" in pieces
    assert " 12" not in pieces  # every digit is a token of its own
    for name in NAMES:
        AutoModelForCausalLM.from_pretrained(find_model(f"bundled:{name}").source)


NAMES = ("target", "draft", "prm")

"""The bundled models: ordinary checkpoints with one vocabulary, and scorers that give low scores to errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

import reason
from reason.config.compose import instantiate, load_option
from reason.models.checkpoint import bundled_names, find_model
from reason.problem import Solution
from reason.scorers.prm import PrmScorer
from reason.tasks.puzzles import Puzzles
from reason.tasks.synthetic.draw import distinct_exercises
from reason.tasks.synthetic.exercise import ExactWriter
from reason.training.stages import SPECULATION_STAGES
from reason.training.tokenizer import render_prompt
from tests.support.error_injection import ErrorWriter
from tests.support.solutions import split_solution

MODELS: dict[str, Any] = {
    "target": AutoModelForCausalLM,
    "draft": AutoModelForCausalLM,
    "verifier": AutoModelForCausalLM,
    "prm": AutoModelForTokenClassification,
}
WEIGHTS = {"recurrence": 1.0, "digit_sums": 1.0}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(find_model("bundled:target").source)


@pytest.fixture(scope="module", params=["prm", "expectation"])
def scorer(request: pytest.FixtureRequest) -> Iterator[PrmScorer]:
    scorer: PrmScorer = instantiate("scorer", load_option("scorer", request.param))
    yield scorer
    scorer.close()


def test_bundled_prm_scores_right_solutions_far_above_wrong_ones(tokenizer: Any, scorer: PrmScorer) -> None:
    """On average, by their worst steps."""
    rng = random.Random(1)
    source = distinct_exercises(3, "heldout", weights=WEIGHTS, difficulties=(2, 3))
    right: list[float] = []
    wrong: list[float] = []
    for _ in range(24):
        exercise, steady, order = next(source), ExactWriter(), rng.random()
        good = exercise.write_solution(steady, random.Random(order))
        bad = exercise.write_solution(ErrorWriter(rng.randrange(steady.num_written), rng), random.Random(order))
        if not bad.startswith(good) and "boxed" in bad:
            bound = scorer.bind(exercise.question, tuple(tokenizer.encode(render_prompt(exercise.question))))
            scored = asyncio.run(bound.score([split_solution(tokenizer, good), split_solution(tokenizer, bad)]))
            for worst_scores, scores in zip((right, wrong), scored.scores, strict=True):
                assert scores is not None
                worst_scores.append(min(score for score in scores if score is not None))
    assert len(wrong) > 10
    assert sum(wrong) / len(wrong) < 0.5 * sum(right) / len(right)


def test_bundled_models_load_with_transformers_and_share_one_vocabulary() -> None:
    text = render_prompt("x0 = 12. Find x3.") + "We get x1: 5*12=60, 60+8=68.\n\nThe answer is \\boxed{20}."
    assert set(bundled_names()) == {*MODELS, "router", "thinker", *SPECULATION_STAGES}
    for name, model in MODELS.items():
        source = find_model(f"bundled:{name}").source
        tokenizer = AutoTokenizer.from_pretrained(source)
        ids = tokenizer.encode(text)
        assert ids == AutoTokenizer.from_pretrained(find_model("bundled:target").source).encode(text)
        pieces = [tokenizer.decode([i]) for i in ids]
        assert "".join(pieces) == text
        assert "\n\n" in pieces
        assert " 12" not in pieces  # every digit is a token of its own
        model.from_pretrained(source)


def test_bundled_thinker_finds_answers_by_long_thoughts_and_knows_them_when_it_is_stopped() -> None:
    task = Puzzles(families=["congruences"], difficulty=[1, 2], size=8)
    settings = ("model=thinker", "search=self_consistency", "search.n=4", "speculation=off")
    with reason.load(*settings, "early_exit=converged") as solver:
        solutions = [outcome for _, outcome in solver.solve_many(task)]
        solver.assert_invariants()
    right = [s for s in solutions if isinstance(s, Solution) and s.answer == s.problem.answer]
    assert len(right) >= 5
    assert all(s.thought.startswith("I ") and s.thought.count("\n") > 4 for s in right)

"""The gold answer as a scorer: what it scores, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

import reason
from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.problem import Problem
from reason.scorers.oracle import OracleScorer
from reason.settings.validate import validate_settings
from reason.tasks.selection import select_task
from reason.tasks.synthetic import Synthetic
from search.tree import Step
from tests.support.toy_search import extract_answer

PROBLEM = Problem(id="p", question="What is 6 times 7?", answer="42")


def score(*texts: str) -> list[float | None] | None:
    paths = OracleScorer().bind_problem(PROBLEM, extract_answer)
    scored = asyncio.run(paths.score([[Step((1,), text) for text in texts]]))
    (scores,) = scored.scores
    return None if scores is None else list(scores)


def test_path_with_an_answer_is_right_or_wrong_and_others_have_no_score() -> None:
    assert score("First.", "So \\boxed{42}.") == [None, 1.0]
    assert score("First.", "So \\boxed{41}.") == [None, 0.0]
    assert score("First.") is None
    assert score() is None


def test_answers_are_compared_as_a_task_compares_them() -> None:
    oracle = OracleScorer()
    paths = oracle.bind_problem(Problem(id="p", question="?", answer="0.5"), lambda text: text)
    scored = asyncio.run(paths.score([[Step((1,), "\\frac{1}{2}")], [Step((1,), "1/3")]]))
    assert scored.scores == [[1.0], [0.0]]
    oracle.close()


def test_question_without_a_gold_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="scorer=oracle needs gold answers, and p has none"):
        OracleScorer().bind_problem(Problem(id="p", question="?"), extract_answer)
    with pytest.raises(ValueError, match="scorer=oracle knows the gold answers of a task"):
        OracleScorer().bind("?", (1,))
    with pytest.raises(ValueError, match="timeout_s must be"):
        OracleScorer(timeout_s=0)


def test_best_of_n_with_the_oracle_is_right_wherever_a_sample_is() -> None:
    task = Synthetic(size=6, seed=3)
    with reason.load("search=best_of_n", "search.n=6", "scorer=oracle", "speculation=off") as solver:
        for problem, outcome in solver.solve_many(task):
            assert not isinstance(outcome, Exception)
            answers = [candidate.answer for candidate in outcome.result.candidates]
            is_right = [task.grade(problem, answer).value == "right" for answer in answers]
            assert (task.grade(problem, outcome.answer).value == "right") == any(is_right)
        with pytest.raises(ValueError, match="scorer=oracle needs gold answers"):
            solver.solve("What is 2 + 2?")


def test_oracle_and_a_bare_question_are_a_wrong_setting() -> None:
    settings, choices = compose_settings(["question=What is 2 + 2?", "scorer=oracle"], "solve")
    spec = validate_settings(settings, choices)
    with pytest.raises(ConfigError, match="scorer=oracle scores by the gold answers of a task, and a question has"):
        select_task(spec.config, choices, spec.scorer)

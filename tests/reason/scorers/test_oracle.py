"""The gold answer as a scorer: what it scores, and what it refuses."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import accumulate, islice

import pytest

import reason
from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.problem import Problem
from reason.scorers.oracle import OracleScorer
from reason.settings.validate import validate_settings
from reason.tasks.selection import select_task
from reason.tasks.synthetic import Synthetic
from reason.tasks.synthetic.draw import distinct_exercises
from reason.tasks.synthetic.exercise import DELIMITER, ExactWriter, Exercise
from reason.tasks.synthetic.families import FAMILIES
from reason.tasks.synthetic.step_checker import check_prefix, check_solution
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


class TestSteps:
    EXERCISES = tuple(
        islice(
            distinct_exercises(
                5, "heldout", weights=dict.fromkeys(FAMILIES, 1.0), difficulties=(2, 4), families=FAMILIES
            ),
            40,
        )
    )

    @staticmethod
    def score(exercise: Exercise, *texts: str) -> list[float | None]:
        checker = partial(check_prefix, exercise)
        problem = Problem(id="p", question=exercise.question, answer=str(exercise.answer), check_prefix=checker)
        paths = OracleScorer(steps=True).bind_problem(problem, extract_answer)
        (scores,) = asyncio.run(paths.score([[Step((1,), text) for text in texts]])).scores
        assert scores is not None
        return list(scores)

    def test_steps_are_right_up_to_the_first_error_and_the_last_one_by_its_answer(self) -> None:
        for number, exercise in enumerate(self.EXERCISES):
            steps = [
                step + DELIMITER for step in exercise.write_solution(ExactWriter(), random.Random(7)).split(DELIMITER)
            ]
            steps[-1] = steps[-1].removesuffix(DELIMITER)
            assert self.score(exercise, *steps) == [1.0] * len(steps)
            wrong_at = number % (len(steps) - 1)
            steps[wrong_at] = "Nonsense." + DELIMITER
            expected = [1.0] * wrong_at + [0.0] * (len(steps) - 1 - wrong_at) + [1.0]  # its answer is right by luck
            assert self.score(exercise, *steps) == expected
            steps[-1] = "The answer is \\boxed{x}."
            assert self.score(exercise, *steps[:-1]) == expected[:-1]

    def test_step_that_is_not_complete_has_no_score_unless_all_is_lost(self) -> None:
        exercise = self.EXERCISES[0]
        first = exercise.gold_steps[0]
        assert self.score(exercise, first[:3], first[3:], DELIMITER, "And then") == [None, None, 1.0, None]
        assert self.score(exercise, "Nonsense." + DELIMITER, "And then") == [0.0, 0.0]

    def test_beginning_is_correct_exactly_where_the_whole_check_says_so(self) -> None:
        drawn = distinct_exercises(
            3, "train", weights=dict.fromkeys(FAMILIES, 1.0), difficulties=(1, 4), families=FAMILIES
        )
        for exercise, seed in zip(drawn, range(200), strict=False):
            rng = random.Random(seed)
            steps = exercise.write_solution(ExactWriter(), rng).split(DELIMITER)
            steps[rng.randrange(len(steps))] += rng.choice(["", "", "0"])
            whole = check_solution(exercise, DELIMITER.join(steps)).correct_steps
            prefixes = accumulate(step + DELIMITER for step in steps)
            assert [check_prefix(exercise, prefix) for prefix in prefixes] == whole

    def test_search_over_steps_follows_right_ones(self) -> None:
        settings = ["search=beam_search", "search.n=8", "scorer=oracle", "speculation=off"]
        right = dict.fromkeys(("false", "true"), 0)
        for steps in right:
            task = Synthetic(size=16, seed=9, difficulty=(3, 4))
            with reason.load(*settings, f"scorer.steps={steps}") as solver:
                for problem, outcome in solver.solve_many(task):
                    assert not isinstance(outcome, Exception)
                    right[steps] += task.grade(problem, outcome.answer).value == "right"
        assert right["true"] > right["false"]

    def test_task_without_a_checker_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"scorer\.steps=true needs a task that can check steps, .* and p has no"):
            OracleScorer(steps=True).bind_problem(PROBLEM, extract_answer)
        with pytest.raises(ValueError, match="steps must be"):
            OracleScorer(steps="yes")  # type: ignore[arg-type]
        settings, choices = compose_settings(["+task=puzzles", "scorer=oracle", "scorer.steps=true"], "solve")
        spec = validate_settings(settings, choices)
        with pytest.raises(ConfigError, match=r"scorer\.steps=true needs a task that can check steps"):
            select_task(spec.config, choices, spec.scorer)

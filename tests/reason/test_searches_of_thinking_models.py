"""Every search gets the answer of a thinking model by the settings of its yaml alone."""

from __future__ import annotations

import pytest

from reason.problem import Solution
from search.step_search import StepSearch
from tests.support.scripted_thinker import LONG
from tests.support.searches import option_names
from tests.support.thinking_models import NUM_PARAGRAPHS, READABLE, THOUGHT, compose_solver, thinking_models

MODEL = "model=qwen3-8b-thinking"
OTHER_TOKENS = {"thinker"}
"""Models left out: the bundled one has room for an answer of 16 tokens of its vocabulary, and here tokens are bytes."""
every_search = pytest.mark.parametrize("name", option_names("search"))


def solve(*overrides: str) -> Solution:
    with compose_solver(*overrides) as solver:
        solution = solver.solve("3+4?")
    solution.tree.assert_invariants()
    return solution


def ends_without_answer(solution: Solution) -> list[str]:
    """The last characters of each solution that voted for nothing, or not for the model's answer."""
    candidates = solution.result.candidates
    assert candidates
    return [solution.tree.path_text(one.node)[-60:] for one in candidates if one.answer != "7"]


@every_search
def test_search_gets_the_answer_with_the_yaml_of_a_thinking_model_and_nothing_else(name: str) -> None:
    with compose_solver(MODEL, f"search={name}") as solver:
        solution, strategy = solver.solve("3+4?"), solver.strategy
    assert ends_without_answer(solution) == []
    assert (solution.answer, solution.result.stop_reason) == ("7", "done")
    # a shorter thought would show nothing
    assert len(THOUGHT) > READABLE
    if isinstance(strategy, StepSearch):
        assert strategy.depth is None or strategy.depth < NUM_PARAGRAPHS
        assert strategy.step_tokens < LONG


@every_search
def test_search_gets_the_answer_of_a_thought_that_is_ended_at_its_budget(name: str) -> None:
    solution = solve(MODEL, f"search={name}", "model.thinking.think_tokens=500")
    assert ends_without_answer(solution) == []
    assert solution.answer == "7"
    assert solution.thought.endswith("I have to answer now.\n")


@pytest.mark.parametrize("search", ["self_consistency", "rebase"])
@pytest.mark.parametrize("model", [name for name in thinking_models() if name not in OTHER_TOKENS])
def test_every_thinking_model_is_answered_with_its_own_tags(model: str, search: str) -> None:
    solution = solve(f"model={model}", f"search={search}")
    assert ends_without_answer(solution) == []
    assert solution.thought.strip() == THOUGHT.strip()

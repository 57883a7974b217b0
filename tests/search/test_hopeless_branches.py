"""Branches that stay hopeless for several steps are given up (`search.give_up`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from decoding.core import Tokens
from search.level_search import LevelSearch
from search.step_search import StepSearch
from search.strategy import Budget, ScoredPaths, SearchResult
from search.tree import SearchTree, Step
from tests.support.searches import search_classes
from tests.support.toy_search import ToyEngine, extract_answer, run_search, write_five_steps

STRATEGIES = search_classes(StepSearch)
STEPWISE = sorted(STRATEGIES.keys() - {"ab_mcts"})  # it writes whole solutions
every_strategy = pytest.mark.parametrize("name", STEPWISE)
LOW, HIGH = 0.01, 0.9


def last_digit(text: str) -> int:
    return int([*(c for c in text if c.isdigit())][-1] if any(map(str.isdigit, text)) else 9)  # of a step cut short


@dataclass
class DigitScorer:
    """Gives a step whose last digit is below `num_low` a low score; answers have a high one."""

    num_low: int = 5

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([[self._score_step(step.text) for step in path] for path in paths])

    def _score_step(self, text: str) -> float:
        return HIGH if "boxed" in text or last_digit(text) >= self.num_low else LOW


def write_unequal_steps(seed: int, prefix: Tokens) -> str:
    """Some branches answer at once, others after five steps."""
    text = write_five_steps(seed, prefix)
    return "\\boxed{1}" if b"\n\n" not in bytes(prefix) and seed % 3 == 0 else text


def run(name: str, write: Any = write_five_steps, scorer: Any = None, **knobs: Any) -> SearchResult:
    budget = knobs.pop("budget", Budget())
    strategy = STRATEGIES[name](**{"n": 8, "select": "majority"} | knobs)
    return run_search(strategy, engine=ToyEngine(write), scorer=scorer or DigitScorer(), budget=budget)


def count_low_steps(tree: SearchTree, node: int, limit: float) -> int:
    """Steps at the end of a path with a score below the limit, counted from the front."""
    count = 0
    for step in tree.path_nodes(node):
        score = tree.nodes[step].score
        count = count + 1 if score is not None and score < limit else 0
    return count


@every_strategy
@pytest.mark.parametrize("after", [1, 2])
def test_no_branch_goes_on_that_was_low_for_so_many_steps(name: str, after: int) -> None:
    result = run(name, write_unequal_steps, give_up=0.5, give_up_after=after)
    tree = result.tree
    parents = {node.parent for node in tree.nodes} - {SearchTree.ROOT}
    first_solution = min(i for i, node in enumerate(tree.nodes) if node.finish == "eos")
    # what is written after the last decision are whole solutions, whose steps no decision chose (A*)
    chosen = {node for node in parents if node < result.selections[-1].size}
    continued = {node for node in chosen if count_low_steps(tree, node, 0.5) >= after}
    assert all(node < first_solution for node in continued)
    cuts = [decision for decision in result.selections if "give_up" in decision.note]
    for decision in cuts:
        assert set(decision.reasons.values()) == {"score"}
        assert all(count_low_steps(tree, node, 0.5) >= after for node in decision.reasons)
        assert not parents & decision.reasons.keys()
    assert cuts or after > 1


@every_strategy
def test_search_whose_branches_are_all_hopeless_still_answers(name: str) -> None:
    result = run(name, scorer=DigitScorer(num_low=10), give_up=0.5, give_up_after=1)
    assert result.best is not None
    assert extract_answer(result.tree.path_text(result.best)) is not None


@every_strategy
def test_share_is_of_the_best_finished_solution(name: str) -> None:
    """Before a solution has finished nothing is below its share."""
    result = run(name, write_unequal_steps, give_up_share=0.5, give_up_after=1)
    for decision in result.selections:
        if "give_up" in decision.note:
            assert decision.note["give_up"] == pytest.approx(0.5 * HIGH)
            before = result.tree.nodes[: decision.size]
            assert any(node.finish is not None and "boxed" in node.step.text for node in before)
            assert {result.tree.nodes[node].score for node in decision.reasons} == {LOW}


@every_strategy
def test_nothing_is_given_up_by_default_or_without_scores(name: str) -> None:
    assert not any("give_up" in d.note for d in run(name).selections)

    class SilentScorer(DigitScorer):
        async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
            return ScoredPaths([None] * len(paths))

    result = run(name, scorer=SilentScorer(), give_up=1.0, give_up_share=1.0, give_up_after=1)
    assert not any("give_up" in d.note for d in result.selections)
    assert result.best is not None


@every_strategy
def test_tree_repeats_and_the_budget_holds(name: str) -> None:
    knobs = {"give_up": 0.5, "give_up_after": 1, "budget": Budget(tokens=400)}
    one, other = (run(name, **knobs) for _ in range(2))
    assert one.tree.to_dict() == other.tree.to_dict()
    assert one.selections == other.selections
    assert one.usage.tokens <= 400


@pytest.mark.parametrize("name", search_classes(LevelSearch))
def test_width_of_a_given_up_branch_is_saved_or_goes_to_others(name: str) -> None:
    whole = run(name, keep_width=False)
    saving = run(name, keep_width=False, give_up=0.5, give_up_after=1)
    shared = run(name, keep_width=True, give_up=0.5, give_up_after=1, depth=6)
    assert saving.usage.tokens < whole.usage.tokens
    assert shared.usage.tokens > saving.usage.tokens


@every_strategy
@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"give_up": 0}, r"give_up must be in \(0, 1\], got 0"),
        ({"give_up_share": 2}, r"give_up_share must be in \(0, 1\], got 2"),
        ({"give_up_after": 0}, "give_up_after must be"),
    ],
)
def test_wrong_knob_is_named(name: str, knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        STRATEGIES[name](**knobs)

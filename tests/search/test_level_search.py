"""Searches by levels: allocation of continuations, ends of branches, and limits."""

from __future__ import annotations

from collections import Counter

import pytest

from decoding.core import SamplingParams
from search.allocation import allocate_by_softmax
from search.level_search import LevelSearch
from search.strategies.beam_search import BeamSearch
from search.strategies.dvts import Dvts
from search.strategies.rebase import Rebase
from search.strategy import Budget
from tests.support.searches import search_classes
from tests.support.toy_search import (
    ROOT,
    ConstantScorer,
    ToyEngine,
    nodes_by_level,
    nodes_by_parent,
    run_search,
    write_five_steps,
    write_solution,
)

STRATEGIES = search_classes(LevelSearch)
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


class TestAllocatedWidths:
    def test_beam_search_keeps_the_best_branches_of_a_level(self) -> None:
        result = run_search(BeamSearch(n=8, beam_width=4), engine=ToyEngine(write_five_steps))
        for level in nodes_by_level(result.tree)[:4]:
            assert len(level) == 8
            best = sorted(level, key=lambda i: -(result.tree.nodes[i].score or 0))[:2]
            below = nodes_by_parent(result.tree)
            assert {i: len(below.get(i, [])) for i in level} == {i: 4 if i in best else 0 for i in level}

    def test_dvts_keeps_the_best_branch_of_each_subtree(self) -> None:
        result = run_search(Dvts(n=12, beam_width=4), engine=ToyEngine(write_five_steps))
        below = nodes_by_parent(result.tree)
        groups = [below[-1][at : at + 4] for at in (0, 4, 8)]
        for _ in range(4):
            winners = [max(group, key=lambda i: result.tree.nodes[i].score or 0) for group in groups]
            for group, winner in zip(groups, winners, strict=True):
                assert {i: len(below.get(i, [])) for i in group} == {i: 4 if i == winner else 0 for i in group}
            groups = [below[winner] for winner in winners]

    def test_rebase_allocates_by_score(self) -> None:
        result = run_search(Rebase(n=16, temperature=0.2, normalise="none"), engine=ToyEngine(write_five_steps))
        below = nodes_by_parent(result.tree)
        for level in nodes_by_level(result.tree)[:4]:
            scores = [result.tree.nodes[i].score or 0.0 for i in level]
            assert [len(below.get(i, [])) for i in level] == allocate_by_softmax(scores, 16, 0.2)


@every_strategy
class TestLevelSearch:
    def test_width_shrinks_with_finished_branches(self, name: str) -> None:
        result = run_search(STRATEGIES[name](n=16))
        finished = 0
        for level in nodes_by_level(result.tree):
            assert len(level) <= 16 - finished
            finished += sum(result.tree.nodes[i].finish is not None for i in level)
        assert len(result.candidates) == finished <= 16
        assert result.best is not None
        assert result.stop_reason == "done"

    def test_tree_repeats_for_a_seed_and_differs_for_another(self, name: str) -> None:
        one, other = (run_search(STRATEGIES[name](n=8)).tree.to_dict() for _ in range(2))
        assert one == other
        assert run_search(STRATEGIES[name](n=8), seed=2).tree.to_dict() != one

    def test_depth_limit_makes_open_branches_candidates(self, name: str) -> None:
        result = run_search(STRATEGIES[name](n=8, depth=2), engine=ToyEngine(write_five_steps))
        assert len(nodes_by_level(result.tree)) == 2
        assert {c.node for c in result.candidates} == set(nodes_by_level(result.tree)[1])
        assert result.best is None  # none of them has finished or has an answer

    def test_solution_ends_at_its_token_limit(self, name: str) -> None:
        sampling = SamplingParams(max_tokens=30)
        result = run_search(
            STRATEGIES[name](n=8, sampling=sampling, step_tokens=20), engine=ToyEngine(write_five_steps)
        )
        lengths = [len(result.tree.prefix_tokens(c.node)) - len(ROOT) for c in result.candidates]
        assert all(30 <= length < 50 for length in lengths)

    @pytest.mark.parametrize("tokens", [1, 50, 200, 1000])
    def test_token_budget_holds_to_the_token(self, name: str, tokens: int) -> None:
        result = run_search(STRATEGIES[name](n=8, step_tokens=30), budget=Budget(tokens=tokens))
        assert result.usage.tokens <= tokens
        if tokens < 200:
            assert result.stop_reason == "budget"
        assert result.candidates

    def test_ties_go_to_the_earlier_branch(self, name: str) -> None:
        result = run_search(STRATEGIES[name](n=8), scorer=ConstantScorer(), engine=ToyEngine(write_five_steps))
        num_children = Counter(node.parent for node in result.tree.nodes)
        first = nodes_by_level(result.tree)[0]
        assert num_children[first[0]] == max(num_children[i] for i in first)

    @pytest.mark.parametrize("knob", ["n", "step_tokens"])
    def test_wrong_knobs_are_refused_by_name(self, name: str, knob: str) -> None:
        with pytest.raises(ValueError, match=f"{knob} must be an int >= 1, got 0"):
            STRATEGIES[name](**{knob: 0})
        with pytest.raises(ValueError, match="depth must be an int >= 1 or null, got 0"):
            STRATEGIES[name](depth=0)
        with pytest.raises(ValueError, match="select must be one of"):
            STRATEGIES[name](select="loud")
        with pytest.raises(ValueError, match="agg_strategy must be one of"):
            STRATEGIES[name](agg_strategy="max")


@pytest.mark.parametrize("name", ["beam_search", "rebase"])
def test_keep_width_gives_the_width_of_finished_branches_to_the_others(name: str) -> None:
    narrow, wide = (
        run_search(STRATEGIES[name](n=8, keep_width=keep), engine=ToyEngine(write_solution)) for keep in (False, True)
    )
    assert len(wide.tree) > len(narrow.tree)
    assert max(map(len, nodes_by_level(wide.tree))) == 8


def test_incompatible_knobs_are_named() -> None:
    with pytest.raises(ValueError, match="n must be a multiple of beam_width=4, got 6"):
        Dvts(n=6)
    with pytest.raises(ValueError, match="beam_width must be at most n=2, got 4"):
        BeamSearch(n=2)
    with pytest.raises(ValueError, match="temperature must be a number > 0, got 0"):
        Rebase(temperature=0)

"""Beam search, DVTS and REBASE: who goes on how often, what ends, and what is asked of engine and scorer."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from search.allocation import best_widths, softmax_widths
from search.strategies.beam_search import BeamSearch
from search.strategies.dvts import Dvts
from search.strategies.rebase import Rebase
from search.strategy import Budget
from search.tree import SearchTree
from tests.support.toy_search import ROOT, ToyEngine, ToyScorer, run, solution

STRATEGIES: dict[str, Any] = {"beam_search": BeamSearch, "dvts": Dvts, "rebase": Rebase}
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def long_winded(seed: int, prefix: Tokens) -> str:
    """Five steps below the root, then an answer."""
    rng = random.Random(f"{seed}:{prefix}")
    left = 5 - bytes(prefix).count(b"\n\n")
    if left > 0:
        return "".join(f"Try {rng.randrange(1000)}.\n\n" for _ in range(left)) + "\\boxed{1}"
    return f"The answer is \\boxed{{{rng.randrange(3)}}}."


def children(tree: SearchTree) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for i, node in enumerate(tree.nodes):
        found.setdefault(node.parent, []).append(i)
    return found


def levels(tree: SearchTree) -> list[list[int]]:
    by_depth: dict[int, list[int]] = {}
    for i, node in enumerate(tree.nodes):
        by_depth.setdefault(node.depth, []).append(i)
    return list(by_depth.values())


class TestWidths:
    def test_they_add_up_and_lose_less_than_one_of_their_share(self) -> None:
        rng = random.Random(0)
        for _ in range(500):
            scores = [rng.choice([rng.random(), 0.5]) for _ in range(rng.randint(1, 20))]
            width, temperature = rng.randint(0, 64), rng.choice([1e-3, 0.1, 0.2, 5.0])
            widths = softmax_widths(scores, width, temperature)
            assert sum(widths) == width
            ordered = sorted(zip(scores, widths, strict=True))
            assert all(b - a >= -1 for (_, a), (_, b) in pairwise(ordered))
            best = best_widths(scores, width, keep=rng.randint(1, 8))
            assert sum(best) == width

    def test_the_temperature_says_how_greedy(self) -> None:
        assert softmax_widths([0.9, 0.8, 0.1], 9, temperature=0.001) == [9, 0, 0]
        assert softmax_widths([0.9, 0.8, 0.1], 9, temperature=1e6) == [3, 3, 3]
        assert softmax_widths([0.0, 0.0], 3, temperature=0.2) == [2, 1]
        assert softmax_widths([], 3, temperature=0.2) == []

    def test_scores_that_differ_widely_overflow_nothing(self) -> None:
        assert softmax_widths([1.0, 0.0], 5, temperature=1e-5) == [5, 0]

    def test_the_best_share_evenly(self) -> None:
        assert best_widths([0.1, 0.9, 0.5], 5, keep=2) == [0, 3, 2]
        assert best_widths([0.5, 0.5, 0.5], 4, keep=2) == [2, 2, 0]
        assert best_widths([0.5], 4, keep=9) == [4]


class TestRules:
    def test_beam_search_keeps_the_best_branches_of_a_level(self) -> None:
        result = run(BeamSearch(n=8, beam_width=4), engine=ToyEngine(long_winded))
        for level in levels(result.tree)[:4]:
            assert len(level) == 8
            best = sorted(level, key=lambda i: -(result.tree.nodes[i].score or 0))[:2]
            below = children(result.tree)
            assert {i: len(below.get(i, [])) for i in level} == {i: 4 if i in best else 0 for i in level}

    def test_dvts_keeps_the_best_branch_of_each_subtree(self) -> None:
        result = run(Dvts(n=12, beam_width=4), engine=ToyEngine(long_winded))
        below = children(result.tree)
        groups = [below[-1][at : at + 4] for at in (0, 4, 8)]
        for _ in range(4):
            winners = [max(group, key=lambda i: result.tree.nodes[i].score or 0) for group in groups]
            for group, winner in zip(groups, winners, strict=True):
                assert {i: len(below.get(i, [])) for i in group} == {i: 4 if i == winner else 0 for i in group}
            groups = [below[winner] for winner in winners]

    def test_rebase_deals_by_score(self) -> None:
        result = run(Rebase(n=16, temperature=0.2), engine=ToyEngine(long_winded))
        below = children(result.tree)
        for level in levels(result.tree)[:4]:
            scores = [result.tree.nodes[i].score or 0.0 for i in level]
            assert [len(below.get(i, [])) for i in level] == softmax_widths(scores, 16, 0.2)


@every_strategy
class TestAll:
    def test_the_width_shrinks_with_what_has_finished(self, name: str) -> None:
        result = run(STRATEGIES[name](n=16))
        finished = 0
        for level in levels(result.tree):
            assert len(level) <= 16 - finished
            finished += sum(result.tree.nodes[i].finish is not None for i in level)
        assert len(result.candidates) == finished <= 16
        assert result.best is not None
        assert result.stopped == "done"

    def test_same_seed_same_tree_another_seed_another(self, name: str) -> None:
        one, other = (run(STRATEGIES[name](n=8)).tree.to_dict() for _ in range(2))
        assert one == other
        assert run(STRATEGIES[name](n=8), seed=2).tree.to_dict() != one

    def test_the_depth_is_a_limit_and_what_is_open_then_a_candidate(self, name: str) -> None:
        result = run(STRATEGIES[name](n=8, depth=2), engine=ToyEngine(long_winded))
        assert len(levels(result.tree)) == 2
        assert {c.node for c in result.candidates} == set(levels(result.tree)[1])
        assert result.best is None  # none of them has finished or has an answer

    def test_a_solution_ends_at_its_limit_of_tokens(self, name: str) -> None:
        sampling = SamplingParams(max_tokens=30)
        result = run(STRATEGIES[name](n=8, sampling=sampling, step_tokens=20), engine=ToyEngine(long_winded))
        lengths = [len(result.tree.tokens(c.node)) - len(ROOT) for c in result.candidates]
        assert all(30 <= length < 50 for length in lengths)

    @pytest.mark.parametrize("tokens", [1, 50, 200, 1000])
    def test_a_budget_is_kept_to_the_token(self, name: str, tokens: int) -> None:
        result = run(STRATEGIES[name](n=8, step_tokens=30), budget=Budget(tokens=tokens))
        assert result.spent.tokens <= tokens
        if tokens < 200:
            assert result.stopped == "budget"
        assert result.candidates

    def test_ties_go_to_the_earlier(self, name: str) -> None:
        class Indifferent(ToyScorer):
            @staticmethod
            def of(text: str) -> float:
                return 0.5

        result = run(STRATEGIES[name](n=8), scorer=Indifferent(), engine=ToyEngine(long_winded))
        asked = Counter(node.parent for node in result.tree.nodes)
        first = levels(result.tree)[0]
        assert asked[first[0]] == max(asked[i] for i in first)

    @pytest.mark.parametrize("knob", ["n", "depth", "step_tokens"])
    def test_nonsense_is_refused_by_name(self, name: str, knob: str) -> None:
        with pytest.raises(ValueError, match=f"{knob} must be an int >= 1, got 0"):
            STRATEGIES[name](**{knob: 0})
        with pytest.raises(ValueError, match="select must be one of"):
            STRATEGIES[name](select="loud")
        with pytest.raises(ValueError, match="agg_strategy must be one of"):
            STRATEGIES[name](agg_strategy="max")


@pytest.mark.parametrize("name", ["beam_search", "rebase"])
def test_a_width_handed_back_is_used_by_the_others(name: str) -> None:
    narrow, wide = (run(STRATEGIES[name](n=8, hand_back=back), engine=ToyEngine(solution)) for back in (False, True))
    assert len(wide.tree) > len(narrow.tree)
    assert max(map(len, levels(wide.tree))) == 8


def test_knobs_that_do_not_fit_together_are_named() -> None:
    with pytest.raises(ValueError, match="n must be a multiple of beam_width=4, got 6"):
        Dvts(n=6)
    with pytest.raises(ValueError, match="beam_width must be at most n=2, got 4"):
        BeamSearch(n=2)
    with pytest.raises(ValueError, match="temperature must be a number > 0, got 0"):
        Rebase(temperature=0)

"""Diverse beam search: the choice of every group by the formula of the paper, and the searches that it contains."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Tokens
from search.strategies.beam_search import BeamSearch
from search.strategies.diverse_beam import DiverseBeam, find_ngrams, sum_similarity
from search.strategies.dvts import Dvts
from search.strategy import SearchResult
from search.tree import SearchTree
from tests.support.toy_search import (
    ConstantScorer,
    SomeStepsScorer,
    ToyEngine,
    ToyScorer,
    nodes_by_parent,
    run_search,
    write_five_steps,
    write_solution,
)

TOKENS = st.lists(st.integers(0, 3), max_size=12).map(tuple)
SETTINGS = [(8, 4, 2), (12, 2, 3), (9, 3, 3), (7, 2, 3), (16, 4, 4), (6, 1, 6), (5, 5, 1)]


def write_alike(seed: int, prefix: Tokens) -> str:
    """Five steps of few different words, so that many of them are alike, or the same."""
    rng = random.Random(f"{seed}:{prefix}")
    steps = [f"{rng.choice('abc')}{rng.choice('abc')} so {rng.randrange(3)}.\n\n" for _ in range(5)]
    done = bytes(prefix).count(b"\n\n")
    return "".join(steps[done:]) + f"\\boxed{{{rng.randrange(3)}}}"


def compare(one: Tokens, other: Tokens, size: int) -> float:
    """The similarity of two steps, counted n-gram by n-gram."""
    grams = [[tokens[i : i + size] for i in range(len(tokens) - size + 1)] or [tokens] for tokens in (one, other)]
    every = {gram for each in grams for gram in each}
    return sum(all(gram in each for each in grams) for gram in every) / len(every)


def assert_chosen_by_the_formula(result: SearchResult, strategy: DiverseBeam) -> int:
    """Checks the widths of every decision; returns how many groups the penalty led elsewhere."""
    tree, num_led = result.tree, 0
    first = nodes_by_parent(tree)[SearchTree.ROOT]
    groups = [
        [first[i] for i in range(strategy.n) if i * strategy.num_groups // strategy.n == g]
        for g in range(strategy.num_groups)
    ]
    for decision in result.selections:
        scores = [tree.nodes[node].score for node in decision.nodes]
        median = statistics.median([score for score in scores if score is not None] or [0])
        before: list[list[Tokens]] = []
        for members in groups:
            indices = [i for i, node in enumerate(decision.nodes) if tree.path_nodes(node)[0] in members]
            num_ended = sum(
                tree.nodes[node].finish is not None and tree.path_nodes(node)[0] in members
                for node in range(decision.size)
            )
            room = len(members) - (0 if strategy.keep_width else num_ended)
            if not indices:
                continue
            plain = {i: median if scores[i] is None else scores[i] or 0.0 for i in indices}
            steps = {i: tree.nodes[decision.nodes[i]].step.tokens for i in indices}
            penalties = {
                i: sum(
                    sum(compare(steps[i], other, strategy.ngram) for other in chosen) / len(chosen) for chosen in before
                )
                for i in indices
            }
            lost = {i: plain[i] - strategy.diversity * penalties[i] for i in indices}
            num_kept = math.ceil(room / strategy.beam_width)
            best = sorted(indices, key=lambda i: (-round(lost[i], 9), i))[:num_kept]
            widths = {i: decision.widths[i] for i in indices}
            assert [i for i in indices if widths[i]] == sorted(best)
            assert sum(widths.values()) == room
            assert max(widths[i] for i in best) - min(widths[i] for i in best) <= 1
            num_led += set(best) != set(sorted(indices, key=lambda i: (-plain[i], i))[:num_kept])
            before.append([steps[i] for i in best])
    return num_led


@pytest.mark.parametrize("seed", range(60))
def test_groups_choose_by_score_less_similarity_with_earlier_groups(seed: int) -> None:
    n, beam_width, num_groups = SETTINGS[seed % len(SETTINGS)]
    strategy = DiverseBeam(
        n=n,
        beam_width=beam_width,
        num_groups=num_groups,
        diversity=(0.0, 0.2, 1.0)[seed % 3],
        ngram=1 + seed % 4,
        keep_width=seed % 2 == 1,
        depth=12,
    )
    engine = ToyEngine((write_alike, write_solution, write_five_steps)[seed // 3 % 3])
    scorer = (ToyScorer(), ConstantScorer(), SomeStepsScorer())[seed // 2 % 3]
    result = run_search(strategy, engine=engine, scorer=scorer, seed=seed)
    assert result.selections
    assert_chosen_by_the_formula(result, strategy)


def test_penalty_leads_to_other_steps() -> None:
    different = {}
    for diversity in (0.0, 1.0):
        strategy = DiverseBeam(n=16, num_groups=4, diversity=diversity)
        results = [run_search(strategy, engine=ToyEngine(write_alike), seed=seed) for seed in range(10)]
        led = [assert_chosen_by_the_formula(result, strategy) for result in results]
        assert all(led) == (diversity > 0)
        continued = [
            {result.tree.nodes[node].step.text for node, width in zip(d.nodes, d.widths, strict=True) if width}
            for result in results
            for d in result.selections
        ]
        different[diversity] = statistics.fmean(map(len, continued))
    assert different[1.0] > different[0.0] + 0.3


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("keep_width", [False, True])
def test_without_penalty_it_is_dvts_and_with_one_group_beam_search(seed: int, keep_width: bool) -> None:
    engine, width = ToyEngine((write_solution, write_five_steps)[seed % 2]), 4
    settings: dict[str, Any] = {"n": 16, "beam_width": width, "keep_width": keep_width, "depth": 8}
    for known, same in (
        (Dvts(**settings), DiverseBeam(**settings, num_groups=4, diversity=0)),
        (BeamSearch(**settings), DiverseBeam(**settings, num_groups=1, diversity=0.7)),
    ):
        one, other = (run_search(strategy, engine=engine, seed=seed) for strategy in (known, same))
        assert one.tree.to_dict() == other.tree.to_dict()
        assert one.votes == other.votes


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_similarity_is_the_share_of_common_ngrams(one: Tokens, other: Tokens, size: int) -> None:
    grams = find_ngrams(one, size), find_ngrams(other, size)
    similarity = sum_similarity(grams[0], [[grams[1]]])
    assert similarity == pytest.approx(compare(one, other, size))
    assert similarity == sum_similarity(grams[1], [[grams[0]]])
    assert sum_similarity(grams[0], [[grams[0]]]) == 1
    assert sum_similarity(grams[0], [[grams[0], grams[1]], [], [grams[1]]]) == pytest.approx((1 + 3 * similarity) / 2)
    assert sum_similarity(grams[0], []) == 0


def test_wrong_knobs_are_refused_by_name() -> None:
    for knob in ("beam_width", "num_groups", "ngram"):
        with pytest.raises(ValueError, match=f"{knob} must be an int >= 1, got 0"):
            DiverseBeam(**dict[str, Any]({knob: 0}))
    with pytest.raises(ValueError, match="num_groups must be at most n=8, got 9"):
        DiverseBeam(n=8, num_groups=9)
    with pytest.raises(ValueError, match="diversity must be a number >= 0, got -1"):
        DiverseBeam(diversity=-1)

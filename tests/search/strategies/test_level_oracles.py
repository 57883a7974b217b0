"""Beam search, DVTS, REBASE and ETS against the rules of their papers, written again, on the same random trees."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.allocation import allocate_by_softmax, allocate_to_best
from search.level_search import LevelSearch
from search.strategies import beam_search, dvts, rebase
from search.strategies.beam_search import BeamSearch
from search.strategies.dvts import Dvts
from search.strategies.ets import Ets
from search.strategies.rebase import Rebase
from search.strategy import SearchResult, Strategy
from tests.support.given_tree import (
    BROKEN_SCORES,
    SCORES,
    GivenEngine,
    GivenScorer,
    GivenTree,
    Place,
    list_places,
    read_place,
)
from tests.support.score_scales import fill_missing, scale_scores
from tests.support.toy_search import run_search

Rule = Callable[[Sequence[Place], Sequence[float], int, Sequence[Place]], Sequence[int]]
"""Widths of the open places of a level, from them, their scores, the width of the level and the ended places."""


def find_shares(scores: Sequence[float], width: int, temperature: float) -> list[Decimal]:
    """width * softmax(score / temperature), REBASE equation 3, with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        powers = [Decimal(0) if s == -math.inf else (Decimal(s) / Decimal(temperature)).exp() for s in scores]
        powers = powers if any(powers) else [Decimal(1)] * len(scores)
        return [width * power / sum(powers) for power in powers]


def allocate_by_largest_remainder(scores: Sequence[float], width: int, temperature: float) -> list[int]:
    """The whole parts of the shares, and one more for those with the largest rest until the width is used."""
    shares = [round(share, 12) for share in find_shares(scores, width, temperature)]  # equal scores, equal shares
    widths = [int(share) for share in shares]
    while sum(widths) < width:
        rests = [share - count for share, count in zip(shares, widths, strict=True)]
        widths[rests.index(max(rests))] += 1
    return widths


def score_places(tree: GivenTree, places: Sequence[Place], knobs: LevelSearch) -> list[float]:
    """The scores by which the width of a level is given."""
    return scale_scores(fill_missing([tree.path_score(place, knobs.agg_strategy) for place in places]), knobs.normalise)


def search_by_levels(tree: GivenTree, knobs: LevelSearch, rule: Rule) -> list[Place]:
    """All places that a search by levels writes, in order: n first steps, then by the rule's widths."""
    written: list[Place] = []
    ended: list[Place] = []
    level: list[Place] = [(child,) for child in range(knobs.n)]
    while level:
        written += level
        ended += [place for place in level if tree.ends(place)]
        places = [place for place in level if not tree.ends(place)]
        width = knobs.n - len(ended)
        widths = rule(places, score_places(tree, places, knobs), width, ended) if places else []
        level = [(*place, child) for place, count in zip(places, widths, strict=True) for child in range(count)]
    return written


def order_by_score(scores: Sequence[float]) -> list[int]:
    return [i for _, i in sorted((-score, i) for i, score in enumerate(scores))]


def beam_rule(beam_width: int) -> Rule:
    def share_out(_: Sequence[Place], scores: Sequence[float], width: int, __: Sequence[Place]) -> list[int]:
        kept_leaves = order_by_score(scores)[: math.ceil(width / beam_width)]
        turns = list(itertools.islice(itertools.cycle(kept_leaves), width))
        return [turns.count(i) for i in range(len(scores))]

    return share_out


def dvts_rule(beam_width: int) -> Rule:
    def share_out(places: Sequence[Place], scores: Sequence[float], _: int, ended: Sequence[Place]) -> list[int]:
        widths = [0] * len(places)
        for subtree in {place[0] // beam_width for place in places}:
            members = [i for i in order_by_score(scores) if places[i][0] // beam_width == subtree]
            widths[members[0]] = beam_width - sum(place[0] // beam_width == subtree for place in ended)
        return widths

    return share_out


def rebase_rule(temperature: float) -> Rule:
    return lambda _, scores, width, __: allocate_by_largest_remainder(scores, width, temperature)


def walk(strategy: Strategy, tree: GivenTree) -> SearchResult:
    return run_search(strategy, engine=GivenEngine(tree), scorer=GivenScorer(tree))


def draw_tree(seed: int, rng: random.Random) -> tuple[GivenTree, dict[str, Any]]:
    """A tree, and how its scores are read."""
    tree = GivenTree(seed, scores=rng.choice([SCORES, BROKEN_SCORES, (0.5,)]))
    return tree, {
        "agg_strategy": rng.choice(["last", "min", "prod", "mean"]),
        "normalise": rng.choice(["none", "rank", "zscore"]),  # logarithms of odds tie within their rounding errors
    }


def find_differences(seed: int) -> list[str]:
    """The searches that do not write what their rules say."""
    rng = random.Random(seed)
    beam_width = rng.choice([1, 2, 3, 4])
    n, temperature = beam_width * rng.randint(1, 4), rng.choice([0.05, 0.2, 1.0])
    tree, scale = draw_tree(seed, rng)
    pairs: list[tuple[LevelSearch, Rule]] = [
        (BeamSearch(n=n, beam_width=beam_width, **scale), beam_rule(beam_width)),
        (Dvts(n=n, beam_width=beam_width, **scale), dvts_rule(beam_width)),
        (Rebase(n=n, temperature=temperature, **scale), rebase_rule(temperature)),
    ]
    return [
        type(strategy).__name__
        for strategy, rule in pairs
        if list_places(walk(strategy, tree)) != search_by_levels(tree, strategy, rule)
    ]


@pytest.mark.parametrize("seed", range(200))
def test_search_writes_what_its_rule_says(seed: int) -> None:
    assert not find_differences(seed)


def last_of_equals(allocate: Callable[..., list[int]]) -> Callable[..., list[int]]:
    return lambda scores, *rest, **knobs: allocate(scores[::-1], *rest, **knobs)[::-1]


MUTANTS: dict[str, Any] = {
    "BeamSearch, the last of equals first": (beam_search, "allocate_to_best", last_of_equals(allocate_to_best)),
    "BeamSearch, one branch less is kept": (
        beam_search,
        "allocate_to_best",
        lambda scores, width, num_kept: allocate_to_best(scores, width, max(1, num_kept - 1)),
    ),
    "Dvts, the last of equals first": (dvts, "allocate_to_best", last_of_equals(allocate_to_best)),
    "Rebase, the last of equals first": (rebase, "allocate_by_softmax", last_of_equals(allocate_by_softmax)),
    "Rebase, one continuation less": (
        rebase,
        "allocate_by_softmax",
        lambda scores, width, temperature: allocate_by_softmax(scores, max(1, width - 1), temperature),
    ),
    "Rebase, a temperature a tenth too high": (
        rebase,
        "allocate_by_softmax",
        lambda scores, width, temperature: allocate_by_softmax(scores, width, 1.1 * temperature),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_rule_would_be_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    assert {name for seed in range(40) for name in find_differences(seed)} == {mutant.partition(",")[0]}


@given(
    st.lists(st.sampled_from([-math.inf, 0.0, 1e-27, 0.25, 0.5, 0.5, 1.0]), min_size=1, max_size=6),
    st.integers(0, 12),
    st.sampled_from([0.01, 0.2, 1.0, 5.0]),
)
def test_softmax_allocation_is_the_one_nearest_to_the_shares(
    scores: list[float], width: int, temperature: float
) -> None:
    shares = find_shares(scores, width, temperature)
    widths = allocate_by_softmax(scores, width, temperature)
    assert widths == allocate_by_largest_remainder(scores, width, temperature)

    def distance(counts: Sequence[int]) -> float:
        return float(sum((Fraction(share) - count) ** 2 for share, count in zip(shares, counts, strict=True)))

    if len(scores) <= 3:
        others = itertools.product(range(width + 1), repeat=len(scores))
        assert distance(widths) <= min(distance(counts) for counts in others if sum(counts) == width) + 1e-9


def ets_objective(
    kept_leaves: Sequence[int], places: Sequence[Place], widths: Sequence[int], penalty: float, coverage: float
) -> Fraction:
    """Equation of ETS, section 4: value kept, less the share of the nodes needed, plus the share of clusters kept."""
    width = sum(widths)
    value = Fraction(sum(widths[i] for i in kept_leaves), width)

    def count_nodes(leaves: Sequence[Place]) -> int:
        return len({leaf[:end] for leaf in leaves for end in range(1, len(leaf) + 1)})

    nodes = Fraction(count_nodes([places[i] for i in kept_leaves]), count_nodes(places) + 1)  # 1: the prompt
    clusters = {place[-1] % 10 for place in places}
    covered = (
        Fraction(len({places[i][-1] % 10 for i in kept_leaves}), len(clusters)) if len(clusters) > 1 else Fraction(0)
    )
    return value - Fraction(penalty) * nodes + Fraction(coverage) * covered


@pytest.mark.parametrize("seed", range(100))
def test_ets_keeps_the_best_of_all_subsets_and_shares_the_width_out_among_them(seed: int) -> None:
    rng = random.Random(seed)
    n, temperature = rng.randint(2, 8), rng.choice([0.05, 0.2, 1.0])
    penalty, coverage = rng.choice([0.5, 1.0, 2.0]), rng.choice([0.0, 0.5, 1.5])
    tree, scale = draw_tree(seed, rng)
    knobs = Ets(n=n, temperature=temperature, penalty=penalty, coverage=coverage, **scale)
    result = walk(knobs, tree)
    for decision in result.selections:
        places = [read_place(result.tree.path_text(node)) for node in decision.nodes]
        scores, width = score_places(tree, places, knobs), sum(decision.widths)
        values = allocate_by_largest_remainder(scores, width, temperature)
        kept_leaves = [i for i, node in enumerate(decision.nodes) if decision.reasons.get(node, "score") == "score"]
        subsets = [
            subset for size in range(1, len(places) + 1) for subset in itertools.combinations(range(len(places)), size)
        ]
        best = max(ets_objective(subset, places, values, penalty, coverage) for subset in subsets)
        assert float(ets_objective(kept_leaves, places, values, penalty, coverage)) == pytest.approx(
            float(best), abs=1e-6
        )
        among_kept = iter(allocate_by_largest_remainder([scores[i] for i in kept_leaves], width, temperature))
        assert list(decision.widths) == [next(among_kept) if i in kept_leaves else 0 for i in range(len(places))]

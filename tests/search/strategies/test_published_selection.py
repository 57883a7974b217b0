"""How the released code of REBASE and its_hub's beam search give out the width, and where ours gives out the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.allocation import allocate_by_softmax
from search.strategies.beam_search import BeamSearch
from tests.support.given_tree import GivenEngine, GivenScorer, GivenTree, Place, list_places
from tests.support.toy_search import run_search

DISTINCT = tuple(i / 100_000 for i in range(100_000))  # ties are as good as none
SCORES = st.lists(st.sampled_from([-math.inf, 0.0, 1e-27, 0.25, 0.5, 0.5, 0.75, 1.0]), min_size=1, max_size=12)


def order_by_score(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def round_up_in_turn(scores: Sequence[float], width: int, temperature: float) -> list[int]:
    """The released code of REBASE: from the best branch on, each takes its share of what is left, rounded up."""
    powers = [Decimal(0) if s == -math.inf else (Decimal(s) / Decimal(temperature)).exp() for s in scores]
    powers = powers if any(powers) else [Decimal(1)] * len(scores)
    widths, rest = [0] * len(scores), sum(powers)
    for i in order_by_score(scores):
        if powers[i]:
            widths[i] = math.ceil(round(width * powers[i] / rest, 12))
        width, rest = width - widths[i], rest - powers[i]
    return widths


class TestRebase:
    """Ours rounds by largest remainder. Rounding up in turn gives the better branches more, and the last ones less."""

    @given(SCORES, st.integers(1, 64), st.sampled_from([0.05, 0.2, 1.0, 5.0]))
    def test_both_roundings_give_out_the_whole_width_and_the_best_differ_by_one(
        self, scores: list[float], width: int, temperature: float
    ) -> None:
        published, ours = (f(scores, width, temperature) for f in (round_up_in_turn, allocate_by_softmax))
        assert sum(published) == sum(ours) == width
        assert all(more - less <= 1 for more, less in zip(published, ours, strict=True))
        best = order_by_score(scores)[0]
        assert 0 <= published[best] - ours[best] <= 1

    @given(st.integers(1, 64), st.integers(1, 20), st.sampled_from([0.0, 0.5, 1.0]))
    def test_roundings_agree_on_equal_scores(self, width: int, count: int, score: float) -> None:
        scores = [score] * count
        assert round_up_in_turn(scores, width, 0.2) == allocate_by_softmax(scores, width, 0.2)

    def test_last_branches_get_nothing_where_rounding_up_has_used_the_width(self) -> None:
        scores = [0.236, 0.219, 0.2, 0.129]  # shares of 1.20, 1.10, 1.00 and .70
        assert round_up_in_turn(scores, 4, 0.2) == [2, 1, 1, 0]
        assert allocate_by_softmax(scores, 4, 0.2) == [1, 1, 1, 1]


@dataclass(frozen=True)
class EvenTree(GivenTree):
    """All solutions have the same number of steps."""

    scores: Sequence[float | None] = DISTINCT

    def ends(self, place: Place) -> bool:
        return len(place) >= self.depth


def search_like_its_hub(tree: GivenTree, num_kept: int, num_copies: int) -> list[Place]:
    """What its_hub's beam search writes: the `num_kept` best of all paths stay, ended ones too, as `num_copies` each.

    Not as there: it begins with `num_copies` first steps, this one with as many as later levels have.
    """
    level: list[Place] = [(child,) for child in range(num_kept * num_copies)]
    written = list(level)
    while True:
        beam = sorted(level, key=lambda place: -(tree.path_score(place) or 0.0))[:num_kept]
        if all(map(tree.ends, beam)):
            return written
        fresh: list[Place] = [(*place, child) for place in beam if not tree.ends(place) for child in range(num_copies)]
        written += fresh
        level = [place for place in beam if tree.ends(place) for _ in range(num_copies)] + fresh


def beam_agrees(tree: GivenTree, num_kept: int, num_copies: int) -> bool:
    beam = BeamSearch(n=num_kept * num_copies, beam_width=num_copies)
    result = run_search(beam, engine=GivenEngine(tree), scorer=GivenScorer(tree))
    return sorted(list_places(result)) == sorted(search_like_its_hub(tree, num_kept, num_copies))


class TestBeamSearch:
    """Ours is search-and-learn's: an ended path leaves the beam as a candidate, and the beam is narrower from there on.

    In its_hub an ended path stays in the beam as long as it is one of the best, and is lost once it is not. Of equal
    scores there the copy first in the beam stays, here the first that was written.
    """

    @pytest.mark.parametrize(("num_kept", "num_copies"), list(itertools.product([1, 2, 3, 4], [2, 3, 4])))
    def test_both_beams_are_the_same_where_no_path_ends_early(self, num_kept: int, num_copies: int) -> None:
        assert all(beam_agrees(EvenTree(seed), num_kept, num_copies) for seed in range(25))

    def test_beams_differ_where_one_does(self) -> None:
        assert not all(beam_agrees(GivenTree(seed, scores=DISTINCT), 2, 2) for seed in range(25))

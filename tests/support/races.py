"""Exact laws of tokens that share their noise: Gumbel-max sampling of three tokens, without a random number.

Of independent exponential times E, the first of E / p is token i with probability p[i], and -log E is Gumbel noise: the
largest log p - log E. Only the shares of E in their sum matter, and these are uniform on a triangle. Which token wins
under p is a question of lines through the triangle, so the law of all winners under the same noise is one of areas:
fractions, for any number of distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from decoding.speculation.acceptance.uniform_stream import Vector
from tests.support.enumeration import ScriptedStream

Point = tuple[Fraction, Fraction, Fraction]
Polygon = tuple[Point, ...]
TRIANGLE: Polygon = tuple((Fraction(i == 0), Fraction(i == 1), Fraction(i == 2)) for i in range(3))


def measure_area(polygon: Polygon) -> Fraction:
    """Returns the area of a convex polygon as a share of the triangle's."""
    return abs(
        sum((a[0] * b[1] - b[0] * a[1] for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True)), Fraction(0))
    )


@cache
def split_polygon(polygon: Polygon, weights: Point) -> dict[int, tuple[Polygon, Fraction]]:
    """Returns by token the part of a polygon where it wins, and its share of the area; without empty parts."""
    parts: dict[int, tuple[Polygon, Fraction]] = {}
    for token in range(3):
        part = polygon if weights[token] > 0 else ()
        for other in range(3):
            if other != token:
                part = clip_polygon(part, token, other, weights)
        if area := measure_area(part):
            parts[token] = part, area / measure_area(polygon)
    return parts


def clip_polygon(polygon: Polygon, winner: int, loser: int, weights: Point) -> Polygon:
    """Returns the part where the winner's time over its weight is not above that of the loser."""
    leads = [point[loser] * weights[winner] - point[winner] * weights[loser] for point in polygon]
    clipped: list[Point] = []
    for i, (a, lead) in enumerate(zip(polygon, leads, strict=True)):
        after = i + 1 - len(polygon)  # the first point comes after the last
        if lead >= 0:
            clipped.append(a)
        if lead * leads[after] < 0:
            share = lead / (lead - leads[after])
            x, y, z = (one + share * (other - one) for one, other in zip(a, polygon[after], strict=True))
            clipped.append((x, y, z))
    return tuple(clipped)


class ScriptedRaces(ScriptedStream):
    """Enumerates the winners of races, in which each position has the same noise for all distributions."""

    def __init__(self, script: Sequence[Any]) -> None:
        super().__init__(script)
        self._cells: dict[int, Polygon] = {}

    def find_winner(self, position: int, weights_V: Vector) -> int:
        """Returns a token that wins under the position's noise, as far as that is known by now."""
        x, y, z = weights_V
        parts = split_polygon(self._cells.get(position, TRIANGLE), (x, y, z))
        winner = int(self._next(lambda: list(parts)))
        self._cells[position], share = parts[winner]
        self.chance *= share
        return winner

"""Plans of segments, and what the rows of a batch see by them."""

from __future__ import annotations

from itertools import product

from decoding.model.batch import pack_segments
from decoding.model.segments import SegmentPlan, SegmentTiles
from tests.support.radix_rounds import Inputs

Lanes = list[tuple[int, int]]
"""The visible keys of a partial result: lane of the kernel and slot."""


def pack_plan(inputs: Inputs, tiles: SegmentTiles) -> tuple[SegmentPlan, Inputs]:
    """Returns a plan that lists all keys, and the inputs in its order."""
    batch, ordered = pack_segments(inputs, tiles)
    assert batch.segments is not None
    return batch.segments, ordered


def read_partials(plan: SegmentPlan) -> list[list[Lanes]]:
    """Returns the partial results of each row, in the order in which they are merged; each has a place of its own."""
    rows: list[dict[int, Lanes]] = [{} for _ in plan.first_partial[1:]]
    for first_row, num_rows, first_key, num_keys, offset, first_word, order in zip(*map(list, plan.items), strict=True):
        for i, begin in product(range(num_rows), range(0, num_keys, plan.tiles.num_keys)):
            bits = -1 if first_word < 0 else int(plan.words[first_word + i])
            split = range(begin, min(begin + plan.tiles.num_keys, num_keys))
            visible = [key for key in split if key <= i + offset and bits >> key & 1]
            place = order + begin // plan.tiles.num_keys
            assert place not in rows[first_row + i], "two splits have one place"
            rows[first_row + i][place] = [(key - begin, int(plan.keys[first_key + key])) for key in visible]
    for row, (begin, end) in enumerate(zip(plan.first_partial[:-1], plan.first_partial[1:], strict=True)):
        assert sorted(rows[row]) == list(range(end - begin)), "a partial result is missing"
    return [[row[order] for order in sorted(row)] for row in rows]

"""Plans attention so that the cuts between the keys of a row depend on the row's absolute position alone.

Split k has the keys at the positions `[k * S, (k + 1) * S)`, and a key stands in the lane of its position within the
split. So a row's partial results are sums over the same keys in the same lanes, whatever else is in the batch: however
its prompt is cut into chunks, wherever the nodes of the prefix cache end, and whether its token was drafted. The plan
of `segments` cuts each run from its own start: it reads fewer keys twice, and its sums depend on where runs start.

- A node gives its rows the splits that end within it. Keys after its last border go to the nodes below it and to the
  sequences, each of which reads them anew: less than one split each.
- Draft nodes have no words. Nodes that follow each other, each the parent of the next, are rows of one causal run over
  the keys since the last border and those of their ancestors; the first ones continue the committed tokens.

The place of an item among the partial results of its rows is the number of its split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoding.kv.prefix_cache import RadixNode
from decoding.kv.slots import NO_SLOTS, Slots
from decoding.model.segments import (
    ListedKeys,
    SegmentItems,
    SegmentPlan,
    SegmentTiles,
    SequenceRows,
    add_runs,
    count_partials,
    cut_rows,
    order_by_path,
)


def plan_aligned_segments(parts: Sequence[SequenceRows], tiles: SegmentTiles) -> tuple[SegmentPlan, list[int]]:
    """Returns the plan, and the indices of `parts` in the order of their rows in it.

    The slots of a part are those of the positions after its cached prefix, without a gap: nothing was evicted.
    """
    order, paths = order_by_path(parts)
    runs = _AlignedRuns(tiles.num_keys)
    num_rows = add_runs(parts, order, paths, runs)
    items = cut_rows(SegmentItems.from_runs(runs.numbers), tiles.num_rows)
    slots, _ = runs.keys.take_update()
    no_words = np.empty(0, dtype=np.int64)
    return SegmentPlan(tiles, items, slots, no_words, count_partials(items, tiles.num_keys, num_rows)), order


class _Tail(NamedTuple):
    """The keys since the last border, which is at the position `start`."""

    start: int = 0
    slots: Slots = NO_SLOTS


class _OpenNode(NamedTuple):
    """A node whose rows are being counted; it has `num_keys` keys in whole splits from the position `start` on."""

    first_row: int
    first_key: int
    num_keys: int
    start: int
    tail: _Tail


class _Chain(NamedTuple):
    """Rows at positions that follow each other; `slots` are those of their draft nodes, all of which the last sees."""

    first_row: int
    num_rows: int
    position: int
    slots: Slots


class _AlignedRuns:
    """Runs of keys, each of which begins at a border, as numbers for `SegmentItems.from_runs`."""

    def __init__(self, split: int) -> None:
        self._split = split
        self.keys = ListedKeys()
        self.numbers: list[int] = []

    def open_node(self, node: RadixNode, first_row: int, above: _OpenNode | None) -> _OpenNode:
        """See `RunBuilder`. Lists the keys of the splits that end within the node."""
        start, slots_above = _tail_of(above)
        slots = np.concatenate([slots_above, node.slots])
        num_whole = len(slots) // self._split * self._split
        tail = _Tail(start + num_whole, slots[num_whole:])
        return _OpenNode(first_row, self.keys.add_transient(slots[:num_whole]), num_whole, start, tail)

    def close_node(self, opened: _OpenNode, end_row: int) -> None:
        """See `RunBuilder`."""
        num_rows, num_keys = end_row - opened.first_row, opened.num_keys
        if num_keys:
            order = opened.start // self._split
            self.numbers += (opened.first_row, num_rows, opened.first_key, num_keys, num_keys, -1, order)

    def add_sequence(self, part: SequenceRows, row: int, above: _OpenNode | None) -> None:
        """See `RunBuilder`. Adds what is after the last border within the cached prefix."""
        start, slots_above = _tail_of(above)
        slots = np.concatenate([slots_above, part.slots])
        end = start + len(slots)
        num_whole = len(slots) // self._split * self._split
        # whole splits of committed keys: the rows of draft nodes come after the committed ones, and see all of them
        self._add_rows(row, part.num_rows, end - part.num_causal, slots[:num_whole], start)
        border, rest = start + num_whole, slots[num_whole:]
        for chain in _cut_chains(part, end):
            keys = np.concatenate([rest, chain.slots])
            self._add_rows(row + chain.first_row, chain.num_rows, chain.position, keys, border)

    def _add_rows(self, row: int, num_rows: int, position: int, slots: Slots, start: int) -> None:
        """Adds runs over `slots`, the first of which is at the position `start`, for rows from `position` on.

        Each row sees the keys up to its own position; a row after the last key sees all. No row has an item in which it
        sees nothing: the first ones are left out of the splits after them.
        """
        first_key, end = self.keys.add_transient(slots), start + len(slots)
        # splits before that of the first row are seen whole by all rows: one run
        split = max(start, min(end, position // self._split * self._split))
        if split > start:
            self.numbers += (row, num_rows, first_key, split - start, split - start, -1, start // self._split)
        for begin in range(split, end, self._split):
            num_before = max(0, begin - position)
            if num_before < num_rows:
                num_keys, offset = min(self._split, end - begin), position + num_before - begin
                self.numbers += (
                    row + num_before, num_rows - num_before, first_key + begin - start, num_keys, offset,
                    -1, begin // self._split,
                )  # fmt: skip


def _tail_of(opened: _OpenNode | None) -> _Tail:
    return opened.tail if opened else _Tail()


def _cut_chains(part: SequenceRows, end: int) -> Iterator[_Chain]:
    """Yields the rows of a sequence as chains; its committed keys end at the position `end`."""
    first_row, num_rows, position = 0, part.num_causal, end - part.num_causal
    nodes: list[int] = []
    for row, bits in enumerate(part.node_bits, start=part.num_causal):
        # ancestors come before a node, so ascending numbers are in order of position
        path = _list_bits(bits)
        if path[:-1] == nodes:
            num_rows, nodes = num_rows + 1, path
            continue
        if num_rows:
            yield _Chain(first_row, num_rows, position, part.node_slots[nodes])
        first_row, num_rows, position, nodes = row, 1, end + len(path) - 1, path
    if num_rows:
        yield _Chain(first_row, num_rows, position, part.node_slots[nodes])


def _list_bits(bits: int) -> list[int]:
    """Returns the numbers of the bits that are set, ascending.

    >>> _list_bits(0b10110)
    [1, 2, 4]
    """
    numbers = []
    while bits:
        lowest = bits & -bits
        numbers.append(lowest.bit_length() - 1)
        bits ^= lowest
    return numbers

"""Plans attention as work items: an interval of rows and a run of keys that all of them read together.

Rows are ordered so that those below any node of the prefix cache follow each other. So the keys of a node are one run,
read once for all rows below it, at every depth and however ragged the batch is. The keys of one sequence after its
cached prefix are a run, and the nodes of its draft are runs of at most 64. Such a cover of the tree by pairs of queries
and KV, cut into even splits, is that of DeFT (Yao et al., arXiv 2404.00242).

A long run is cut into splits of keys and its rows into tiles; each pair is an item. An item gives a partial result for
each of its rows, and a row's partial results are merged in the order of its keys. Where the cuts are depends on the
run alone, so a row's sum has the same order of terms in every batch.

Shapes: T rows, I items, K keys of all runs. In Python the cost is O(rows + runs), with one visit per sequence and node
above it; items are cut and keys are copied by NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.kv.prefix_cache import RadixNode
from decoding.kv.slots import NO_SLOTS, Slots

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

WORD_BITS = 64
"""Keys of an item with words: one bit of an int64 for each."""


class SegmentTiles(NamedTuple):
    """The largest item: rows and keys.

    is_aligned  splits of keys begin at absolute positions that are multiples of `num_keys` (see `aligned_segments`)
    """

    num_rows: int
    num_keys: int
    is_aligned: bool = False


class SequenceRows(NamedTuple):
    """The rows of one sequence, and the keys that they see: those of the cached prefix, and

    slots       keys after it, in order of position. The last `num_causal` of them are those of the first rows: row i
                sees the keys up to its own. Later rows see all.
    node_slots  keys of draft nodes. The first `num_causal` rows see none of them, and bit k of `node_bits[i]` says
                whether row `num_causal + i` sees key k.
    """

    prefix_node: RadixNode | None
    slots: Slots
    num_causal: int
    node_slots: Slots = NO_SLOTS
    node_bits: Sequence[int] = ()

    @property
    def num_rows(self) -> int:
        return self.num_causal + len(self.node_bits)


class SegmentItems(NamedTuple):
    """Columns of the items, each int32 `[I]`.

    first_row, num_rows  rows of the batch; row i of the item is row `first_row + i` of the batch
    first_key, num_keys  keys of the plan; key k of the item is `keys[first_key + k]`
    causal_offset        row i sees key k only if `k <= i + causal_offset`
    first_word           -1, or row i sees key k only if bit k of `words[first_word + i]` is set
    order                the item's place among the partial results of each of its rows
    """

    first_row: Int32s
    num_rows: Int32s
    first_key: Int32s
    num_keys: Int32s
    causal_offset: Int32s
    first_word: Int32s
    order: Int32s


@dataclass(frozen=True)
class SegmentPlan:
    """Which keys the rows of a batch attend to.

    keys           int32 `[K]`, slots
    words          int64, bits of visible keys, one word per row of an item that has words
    first_partial  int32 `[T + 1]`; row t has the partial results `[first_partial[t], first_partial[t + 1])`, of which
                   an item computes that at `first_partial[t] + order`
    """

    tiles: SegmentTiles
    items: SegmentItems
    keys: Int32s
    words: Int64s
    first_partial: Int32s

    @property
    def num_partials(self) -> int:
        """Partial results of all rows."""
        return int(self.first_partial[-1])


def plan_segments(parts: Sequence[SequenceRows], tiles: SegmentTiles) -> tuple[SegmentPlan, list[int]]:
    """Returns the plan, and the indices of `parts` in the order of their rows in it.

    `tiles.num_keys` is a multiple of 64. Every row must see at least one key.
    """
    assert tiles.num_keys % WORD_BITS == 0
    paths = [part.prefix_node.path_from_root() if part.prefix_node is not None else [] for part in parts]
    order = order_by_path(paths)
    runs, open_nodes = _RunTable(tiles.num_keys), list[_OpenNode]()
    row = 0
    for i in order:
        part, path = parts[i], paths[i]
        depth = _common_depth(open_nodes, path)
        while len(open_nodes) > depth:
            runs.close_node(open_nodes.pop(), row)
        for node in path[depth:]:
            open_nodes.append(runs.open_node(node, row, open_nodes[-1].next_order if open_nodes else 0))
        runs.add_sequence(part, row, open_nodes[-1].next_order if open_nodes else 0)
        row += part.num_rows
    for opened in open_nodes:
        runs.close_node(opened, row)
    items = cut_runs(runs.as_columns(), tiles)
    plan = SegmentPlan(
        tiles,
        items,
        np.concatenate(runs.keys, dtype=np.int32),
        np.concatenate(runs.words),
        find_first_partials(items, row),
    )
    return plan, order


def ancestor_bits(parents: Sequence[int]) -> list[int]:
    """Returns for each node of a draft the set of itself and its ancestors, as bits of an int.

    >>> [f"{bits:b}" for bits in ancestor_bits((-1, 0, 0, 2))]
    ['1', '11', '101', '1101']
    """
    bits: list[int] = []
    for node, parent in enumerate(parents):
        bits.append(1 << node | (bits[parent] if parent >= 0 else 0))
    return bits


def order_by_path(paths: Sequence[Sequence[RadixNode]]) -> list[int]:
    """Returns the indices of the paths so that those through any node follow each other."""
    numbers: dict[int, int] = {}  # by id, in the order in which nodes first appear
    sort_keys = [[numbers.setdefault(id(node), len(numbers)) for node in path] for path in paths]
    return sorted(range(len(paths)), key=sort_keys.__getitem__)


class _OpenNode(NamedTuple):
    """A node whose rows are being counted; `next_order` is the place of the first partial result after its own."""

    first_row: int
    first_key: int
    node: RadixNode
    order: int
    next_order: int


def _common_depth(open_nodes: Sequence[_OpenNode], path: Sequence[RadixNode]) -> int:
    depth = 0
    while depth < min(len(open_nodes), len(path)) and open_nodes[depth].node is path[depth]:
        depth += 1
    return depth


@dataclass
class _RunTable:
    """Runs of keys, each read by an interval of rows, in columns of `SegmentItems` before they are cut.

    `keys` and `words` begin with an empty array, so that there is always one to concatenate.
    """

    max_keys: int
    rows: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    keys: list[Slots] = field(default_factory=lambda: [NO_SLOTS])
    words: list[Int64s] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    num_keys: int = 0
    num_words: int = 0

    def open_node(self, node: RadixNode, first_row: int, order: int) -> _OpenNode:
        """Lists the node's keys."""
        next_order = order + -(-len(node.slots) // self.max_keys)
        return _OpenNode(first_row, self._add_keys(node.slots), node, order, next_order)

    def close_node(self, opened: _OpenNode, end_row: int) -> None:
        """Adds the run of a node, of which every row before `end_row` sees every key."""
        num_keys = len(opened.node.slots)
        self.rows.append(
            (opened.first_row, end_row - opened.first_row, opened.first_key, num_keys, num_keys, -1, opened.order)
        )

    def add_sequence(self, part: SequenceRows, row: int, order: int) -> None:
        """Adds the runs of one sequence after its cached prefix."""
        num_keys = len(part.slots)
        if num_keys:
            # row 0 sees the keys before those of the causal rows, and its own
            offset = num_keys - part.num_causal
            self.rows.append((row, part.num_rows, self._add_keys(part.slots), num_keys, offset, -1, order))
            order += -(-num_keys // self.max_keys)
        if not part.node_bits:
            return
        num_rows, first_row = len(part.node_bits), row + part.num_causal
        num_nodes = len(part.node_slots)
        first_key = self._add_keys(part.node_slots)
        for at, words in zip(range(0, num_nodes, WORD_BITS), _split_bits(part.node_bits, num_nodes), strict=True):
            chunk = min(WORD_BITS, num_nodes - at)
            self.rows.append((first_row, num_rows, first_key + at, chunk, chunk, self.num_words, order))
            self.words.append(words)
            self.num_words += num_rows
            order += 1

    def as_columns(self) -> SegmentItems:
        """Returns the runs; `num_rows` and `num_keys` may exceed those of an item."""
        table = np.array(self.rows, dtype=np.int32).reshape(-1, len(SegmentItems._fields))
        return SegmentItems(*table.T)

    def _add_keys(self, slots: Slots) -> int:
        first = self.num_keys
        self.keys.append(slots)
        self.num_keys += len(slots)
        return first


def _split_bits(bits: Sequence[int], num_bits: int) -> Int64s:
    """Returns the bits as words `[ceil(num_bits / 64), len(bits)]`."""
    num_words = -(-num_bits // WORD_BITS)
    data = b"".join(one.to_bytes(8 * num_words, "little") for one in bits)
    return np.ascontiguousarray(np.frombuffer(data, dtype="<i8").reshape(len(bits), num_words).T)


def cut_runs(runs: SegmentItems, tiles: SegmentTiles) -> SegmentItems:
    """Cuts the rows of the runs into tiles and their keys into splits; leaves out pairs without a visible key."""
    tiles_R = -(-runs.num_rows // tiles.num_rows)
    splits_R = -(-runs.num_keys // tiles.num_keys)
    counts_R = tiles_R * splits_R
    run_I = np.repeat(np.arange(len(counts_R)), counts_R)
    # place of an item within its run: tile by tile, the splits of each in order
    place_I = np.arange(len(run_I)) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R)
    tile_I, split_I = np.divmod(place_I, splits_R[run_I])
    row_I, key_I = tile_I * tiles.num_rows, split_I * tiles.num_keys
    each = SegmentItems(*(column[run_I] for column in runs))
    num_rows_I = np.minimum(tiles.num_rows, each.num_rows - row_I)
    offset_I = each.causal_offset + row_I - key_I
    # no row sees keys after that of the tile's last row
    num_keys_I = np.minimum(np.minimum(tiles.num_keys, each.num_keys - key_I), offset_I + num_rows_I)
    items = SegmentItems(
        each.first_row + row_I,
        num_rows_I,
        each.first_key + key_I,
        num_keys_I,
        offset_I,
        np.where(each.first_word < 0, -1, each.first_word + row_I),
        each.order + split_I,
    )
    is_visible_I = num_keys_I > 0
    return SegmentItems(*(column[is_visible_I].astype(np.int32) for column in items))


def find_first_partials(items: SegmentItems, num_rows: int) -> Int32s:
    """Returns where each row's partial results begin, `[T + 1]`."""
    changes = np.zeros(num_rows + 1, dtype=np.int64)
    np.add.at(changes, items.first_row, 1)
    np.add.at(changes, items.first_row + items.num_rows, -1)
    counts_T = np.cumsum(changes[:-1])
    return np.concatenate([[0], np.cumsum(counts_T)]).astype(np.int32)

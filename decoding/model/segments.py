"""Plans attention as work items: an interval of rows and a run of keys that all of them read together.

Rows are ordered so that those below any node of the prefix cache follow each other. So the keys of a node are one run,
read once for all rows below it, at every depth and however ragged the batch is. The keys of one sequence after its
cached prefix are a run, and the nodes of its draft are runs of at most 64. Such a cover of the tree by pairs of queries
and KV, cut into even splits, is that of DeFT (Yao et al., arXiv 2404.00242).

The rows of a run are cut into tiles: each is an item. On the device the keys of an item are cut into splits, so what
the host does and sends does not grow with a run. A split gives a partial result for each of its rows, and a row's
partial results are merged in the order of its keys. Where the cuts are depends on the run alone, so a row's sum has the
same order of terms in every batch.

Runs are in a table on the device (`decoding.model.key_table`), and a plan has the keys that are not there yet; without
a table it has all.

Shapes: T rows, I items, K keys of the plan. In Python the cost is O(rows + runs), with one visit per sequence and node
above it; rows are cut and keys are copied by NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from decoding.fork import LazyProperty
from decoding.kv.prefix_cache import RadixNode
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import NO_SLOTS, Slots
from decoding.model.key_table import KeyTable, KeyUpdate, TableFull
from decoding.speculation.draft import keep_small_trees

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

N = TypeVar("N")

WORD_BITS = 64
"""Keys of an item with words: one bit of an int64 for each."""
_WORD = (1 << WORD_BITS) - 1


class SegmentTiles(NamedTuple):
    """The largest split: rows and keys.

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
    sequence    whose slots these are; a table keeps them where it is given
    """

    prefix_node: RadixNode | None
    slots: Slots
    num_causal: int
    node_slots: Slots = NO_SLOTS
    node_bits: Sequence[int] = ()
    sequence: TokenSequence | None = None

    @property
    def num_rows(self) -> int:
        return self.num_causal + len(self.node_bits)


class SegmentItems(NamedTuple):
    """Columns of the items, each int32 `[I]`.

    first_row, num_rows  rows of the batch; row i of the item is row `first_row + i` of the batch
    first_key, num_keys  keys of the plan or of its table; key k of the item is `keys[first_key + k]`
    causal_offset        row i sees key k only if `k <= i + causal_offset`
    first_word           -1, or row i sees key k only if bit k of `words[first_word + i]` is set
    order                place of the first split among the partial results of each of its rows; the others follow
    """

    first_row: Int32s
    num_rows: Int32s
    first_key: Int32s
    num_keys: Int32s
    causal_offset: Int32s
    first_word: Int32s
    order: Int32s

    @classmethod
    def from_runs(cls, numbers: Sequence[int]) -> SegmentItems:
        """Returns runs as columns, given run by run: `num_rows` may exceed that of an item, and columns are int64."""
        # one list of numbers is made an array faster than many tuples
        return cls(*np.array(numbers, dtype=np.int64).reshape(-1, len(cls._fields)).T)


@dataclass(frozen=True)
class SegmentPlan:
    """Which keys the rows of a batch attend to.

    keys           int32 `[K]`, slots that items read, or with `update` those to write to the table that they read
    words          int64, bits of visible keys, one word per row of an item that has words
    first_partial  int32 `[T + 1]`; row t has the partial results `[first_partial[t], first_partial[t + 1])`, of which
                   split i of an item computes that at `first_partial[t] + order + i`
    """

    tiles: SegmentTiles
    items: SegmentItems
    keys: Int32s
    words: Int64s
    first_partial: Int32s
    update: KeyUpdate | None = None

    @property
    def num_partials(self) -> int:
        """Partial results of all rows."""
        return int(self.first_partial[-1])

    @LazyProperty
    def split_ends(self) -> Int32s:
        """How many splits the items have up to the end of each, `[I]`."""
        return np.cumsum(-(-self.items.num_keys // self.tiles.num_keys), dtype=np.int32)

    @property
    def num_splits(self) -> int:
        """Splits of all items."""
        return int(self.split_ends[-1])


def plan_segments(
    parts: Sequence[SequenceRows], tiles: SegmentTiles, table: KeyTable | None = None
) -> tuple[SegmentPlan, list[int]]:
    """Returns the plan, and the indices of `parts` in the order of their rows in it.

    `tiles.num_keys` is a multiple of 64. Every row must see at least one key. Without a table the plan lists all keys.
    *Mutates* the table.
    """
    assert tiles.num_keys % WORD_BITS == 0
    order, paths = order_by_path(parts)
    if table is None:
        return _plan_in_order(parts, order, paths, tiles, ListedKeys()), order
    table.begin_round()
    while True:
        try:
            return _plan_in_order(parts, order, paths, tiles, table), order
        except TableFull:
            table.start_over()


def _plan_in_order(
    parts: Sequence[SequenceRows],
    order: Sequence[int],
    paths: Mapping[int, Sequence[RadixNode]],
    tiles: SegmentTiles,
    keys: KeyTable | ListedKeys,
) -> SegmentPlan:
    runs = _Runs(tiles.num_keys, keys)
    num_rows = add_runs(parts, order, paths, runs)
    items = cut_rows(SegmentItems.from_runs(runs.numbers), tiles.num_rows)
    slots, update = keys.take_update()
    first_partial = count_partials(items, tiles.num_keys, num_rows)
    return SegmentPlan(tiles, items, slots, runs.join_words(), first_partial, update)


class RunBuilder(Protocol[N]):
    """Collects the runs of a plan. `N` is what it keeps of a node whose rows are being counted."""

    def open_node(self, node: RadixNode, first_row: int, above: N | None) -> N:
        """Begins the runs of a node; `above` is that of the node above it."""
        ...

    def close_node(self, opened: N, end_row: int) -> None:
        """Adds the runs of a node, of which every row before `end_row` sees every key."""
        ...

    def add_sequence(self, part: SequenceRows, row: int, above: N | None) -> None:
        """Adds the runs of one sequence after its cached prefix; `above` is that of the prefix's last node."""
        ...


def add_runs(
    parts: Sequence[SequenceRows],
    order: Sequence[int],
    paths: Mapping[int, Sequence[RadixNode]],
    runs: RunBuilder[N],
) -> int:
    """Adds the runs of all sequences and of the nodes above them; returns the number of rows. *Mutates* `runs`.

    order, paths  as `order_by_path` returns them: a node is opened once
    """
    open_path, opened = list[RadixNode](), list[N]()
    row, above, last_node = 0, None, None
    for i in order:
        part = parts[i]
        if part.prefix_node is not last_node:
            last_node = part.prefix_node
            path = paths[id(last_node)]
            depth = _common_depth(open_path, path)
            while len(opened) > depth:
                runs.close_node(opened.pop(), row)
            above = opened[-1] if opened else None
            for node in path[depth:]:
                above = runs.open_node(node, row, above)
                opened.append(above)
            open_path[depth:] = path[depth:]
        runs.add_sequence(part, row, above)
        row += part.num_rows
    for one in opened:
        runs.close_node(one, row)
    return row


@keep_small_trees
def ancestor_bits(parents: tuple[int, ...]) -> tuple[int, ...]:
    """Returns for each node of a draft the set of itself and its ancestors, as bits of an int.

    >>> [f"{bits:b}" for bits in ancestor_bits((-1, 0, 0, 2))]
    ['1', '11', '101', '1101']
    """
    bits: list[int] = []
    for node, parent in enumerate(parents):
        bits.append(1 << node | (bits[parent] if parent >= 0 else 0))
    return tuple(bits)


def order_by_path(parts: Sequence[SequenceRows]) -> tuple[list[int], dict[int, list[RadixNode]]]:
    """Returns the indices of the parts so that those below any node follow each other, and the paths of their nodes.

    Paths are by the id of their last node, and empty for that of None.
    """
    below: dict[int, list[int]] = {}
    paths: dict[int, list[RadixNode]] = {}
    for i, part in enumerate(parts):
        node = part.prefix_node
        if id(node) not in below:
            below[id(node)], paths[id(node)] = [], [] if node is None else node.path_from_root()
        below[id(node)].append(i)
    numbers: dict[int, int] = {}  # by id, in the order in which nodes first appear
    sort_keys = {last: [numbers.setdefault(id(node), len(numbers)) for node in path] for last, path in paths.items()}
    return [i for last in sorted(sort_keys, key=sort_keys.__getitem__) for i in below[last]], paths


class _OpenNode(NamedTuple):
    """A node whose rows are being counted; `next_order` is the place of the first partial result after its own."""

    first_row: int
    first_key: int
    node: RadixNode
    order: int
    next_order: int


def _common_depth(open_path: Sequence[RadixNode], path: Sequence[RadixNode]) -> int:
    depth = 0
    while depth < min(len(open_path), len(path)) and open_path[depth] is path[depth]:
        depth += 1
    return depth


class ListedKeys:
    """Lists all keys of a plan that has no table. See `KeyTable` for its methods."""

    def __init__(self) -> None:
        # there is always one array to concatenate
        self._pieces = [NO_SLOTS]
        self._num_keys = 0

    def add_node(self, node: RadixNode) -> int:
        return self.add_transient(node.slots)

    def add_sequence(self, sequence: TokenSequence, slots: Slots, num_new: int) -> int:
        return self.add_transient(slots)

    def add_transient(self, slots: Slots) -> int:
        first = self._num_keys
        self._pieces.append(slots)
        self._num_keys += len(slots)
        return first

    def take_update(self) -> tuple[Int32s, None]:
        return np.concatenate(self._pieces, dtype=np.int32), None


class _Runs:
    """Runs of keys, each read by an interval of rows, as numbers for `SegmentItems.from_runs`."""

    def __init__(self, max_keys: int, keys: KeyTable | ListedKeys) -> None:
        self._max_keys, self._keys = max_keys, keys
        self.numbers: list[int] = []
        self._bits: list[int] = []

    def open_node(self, node: RadixNode, first_row: int, above: _OpenNode | None) -> _OpenNode:
        """See `RunBuilder`. Lists the node's keys."""
        order = above.next_order if above else 0
        next_order = order + -(-len(node.slots) // self._max_keys)
        return _OpenNode(first_row, self._keys.add_node(node), node, order, next_order)

    def close_node(self, opened: _OpenNode, end_row: int) -> None:
        """See `RunBuilder`."""
        num_keys = len(opened.node.slots)
        self.numbers += (
            *(opened.first_row, end_row - opened.first_row, opened.first_key, num_keys, num_keys, -1),
            opened.order,
        )

    def add_sequence(self, part: SequenceRows, row: int, above: _OpenNode | None) -> None:
        """See `RunBuilder`."""
        _, slots, num_causal, node_slots, node_bits, sequence = part
        num_keys, keys, order = len(slots), self._keys, above.next_order if above else 0
        if num_keys:
            first = keys.add_transient(slots) if sequence is None else keys.add_sequence(sequence, slots, num_causal)
            # row 0 sees the keys before those of the causal rows, and its own
            self.numbers += (row, part.num_rows, first, num_keys, num_keys - num_causal, -1, order)
            order += -(-num_keys // self._max_keys)
        if not node_bits:
            return
        first_row, num_nodes, first = row + num_causal, len(node_slots), keys.add_transient(node_slots)
        for at in range(0, num_nodes, WORD_BITS):
            chunk = min(WORD_BITS, num_nodes - at)
            self.numbers += (first_row, len(node_bits), first + at, chunk, chunk, len(self._bits), order)
            self._bits += [bits >> at & _WORD for bits in node_bits] if num_nodes > WORD_BITS else node_bits
            order += 1

    def join_words(self) -> Int64s:
        """Returns the words of all runs."""
        return np.array(self._bits, dtype=np.uint64).view(np.int64)


def cut_rows(runs: SegmentItems, tile_rows: int) -> SegmentItems:
    """Cuts the rows of the runs into tiles; leaves out keys that no row of a tile sees, and tiles that see none."""
    counts_R = -(-runs.num_rows // tile_rows)
    run_I = np.repeat(np.arange(len(counts_R)), counts_R)
    # row of the run at which an item begins: its place within the run, in tiles
    row_I = (np.arange(len(run_I)) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R)) * tile_rows
    each = SegmentItems(*(column[run_I] for column in runs))
    num_rows_I = np.minimum(tile_rows, each.num_rows - row_I)
    offset_I = each.causal_offset + row_I
    # no row sees keys after that of the tile's last row
    num_keys_I = np.minimum(each.num_keys, offset_I + num_rows_I)
    word_I = np.where(each.first_word < 0, -1, each.first_word + row_I)
    items = SegmentItems(each.first_row + row_I, num_rows_I, each.first_key, num_keys_I, offset_I, word_I, each.order)
    is_visible_I = num_keys_I > 0
    return SegmentItems(*(column[is_visible_I].astype(np.int32) for column in items))


def count_partials(items: SegmentItems, split_keys: int, num_rows: int) -> Int32s:
    """Returns where each row's partial results begin, `[T + 1]`."""
    splits_I = -(-items.num_keys // split_keys)
    changes = np.zeros(num_rows + 1, dtype=np.int64)
    np.add.at(changes, items.first_row, splits_I)
    np.add.at(changes, items.first_row + items.num_rows, -splits_I)
    counts_T = np.cumsum(changes[:-1])
    return np.concatenate([[0], np.cumsum(counts_T)]).astype(np.int32)

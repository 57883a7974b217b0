"""Lists which keys each token of a batch attends to, for the compiled decoder, which reads them in their slots.

Sequences with a common prefix are neighbours, because the decoder reads keys once for neighbours that have them in
common.

Shapes: P sequences, T tokens, N nodes of a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.compiled import compiled_in_place
from decoding.kv.prefix_cache import RadixNode
from decoding.kv.slots import NO_SLOTS, Slots
from decoding.model.backend import Bools, Ints, KeyLists, Records

KEYS_RECORD = np.dtype([(name, np.int64) for name in ("start", "count", "extra_start", "extra_count", "common")])
"""What a token attends to: `key_slots[start : start + count]`, positions from 0 on, and then
`extra_slots[extra_start : extra_start + extra_count]`, the draft nodes among its ancestors.

common   how many of its first keys it has in common with the token before it
"""

_NO_PARENTS: Ints = np.zeros(0, dtype=np.int64)


class ListedRows(NamedTuple):
    """The rows of one sequence.

    slots       all its keys, in order of position; those of N draft nodes are the last
    num_causal  the first rows, whose own keys are the last before those; each sees the keys up to its own
    parents_N   of each draft node its parent, which comes before it; -1 where that is the last committed token
    num_drafted   the other rows: the last draft nodes. Each sees itself, its ancestors and all keys of no draft node
    """

    slots: Slots
    num_causal: int
    parents_N: Ints = _NO_PARENTS
    num_drafted: int = 0


class PrefixOrder(NamedTuple):
    """An order in which sequences with a common prefix are neighbours.

    places_P  for each place in it the index of the sequence
    common_P  how many of its first tokens this one reads from the same slots as the one before; 0 of the first
    """

    places_P: list[int]
    common_P: Ints


def order_by_prefix(nodes: Sequence[RadixNode | None]) -> PrefixOrder:
    """Returns the order for sequences whose cached prefixes end at `nodes`; O(sequences x depth of the cache)."""
    numbers: dict[int, int] = {}  # of nodes, in the order in which they come up: the result is the same in every run
    paths = [[] if node is None else node.path_from_root() for node in nodes]
    keys = [tuple([numbers.setdefault(id(node), len(numbers)) for node in path]) for path in paths]
    places = sorted(range(len(nodes)), key=keys.__getitem__)
    common = [0] * len(nodes)
    for place in range(1, len(nodes)):
        for node, other in zip(paths[places[place - 1]], paths[places[place]], strict=False):
            if node is not other:
                break
            common[place] = node.end
    return PrefixOrder(places, np.array(common, dtype=np.int64))


def list_keys(parts: Sequence[ListedRows], common_P: Ints) -> KeyLists:
    """Returns the keys of all rows, in this order; `common_P` as in `PrefixOrder`."""
    slots = [part.slots for part in parts]
    drafted = [part.parents_N for part in parts if part.num_drafted]
    parents_M = np.concatenate(drafted) if drafted else _NO_PARENTS
    # a flat list: of tuples NumPy takes twice as long to make an array
    sizes: list[int] = []
    num_tokens = room = 0
    for part in parts:
        num_nodes = len(part.parents_N)
        sizes += (len(part.slots), part.num_causal, part.num_drafted, num_nodes)
        num_tokens, room = num_tokens + part.num_causal + part.num_drafted, room + part.num_drafted * num_nodes
    key_slots = slots[0] if len(slots) == 1 else np.concatenate(slots)
    # as if each row saw all nodes; memory that is not written is not taken
    extra_slots = np.empty(room, dtype=np.int64) if room else NO_SLOTS
    keys_T: Records = np.empty(num_tokens, dtype=KEYS_RECORD)
    is_seen = np.empty(len(parents_M), dtype=np.bool_)
    _fill_keys(np.array(sizes, dtype=np.int64), common_P, parents_M, is_seen, key_slots, extra_slots, keys_T)
    return KeyLists(key_slots, extra_slots, keys_T)


@compiled_in_place
def _fill_keys(
    sizes: Ints, common_P: Ints, parents_M: Ints, is_seen: Bools, key_slots: Slots, extra_slots: Slots, keys_T: Records
) -> None:
    """*Mutates* `keys_T` and `extra_slots`, and `is_seen`, which has room for the nodes of a part.

    sizes      keys, causal rows, other rows and nodes of each part
    parents_M  of the nodes of all parts with other rows
    """
    at = t = extra_at = first = 0
    for p in range(len(common_P)):
        num_keys, num_causal, num_rows, num_nodes = sizes[4 * p], sizes[4 * p + 1], sizes[4 * p + 2], sizes[4 * p + 3]
        old = num_keys - num_nodes
        for row in range(num_causal + num_rows):
            keys, count = keys_T[t], old - num_causal + row + 1
            keys.start, keys.extra_start = at, extra_at
            if row >= num_causal:
                is_seen[:num_nodes] = False
                own_node = row - num_causal + num_nodes - num_rows
                node = own_node
                while node >= 0:
                    is_seen[node], node = True, parents_M[first + node]
                # the first nodes, as long as all are seen, follow the other keys
                node = 0
                while node <= own_node and is_seen[node]:
                    node += 1
                count = old + node
                for other in range(node, own_node + 1):
                    if is_seen[other]:
                        extra_slots[extra_at] = key_slots[at + old + other]
                        extra_at += 1
            keys.count, keys.extra_count = count, extra_at - keys.extra_start
            keys.common = common_P[p] if row == 0 else min(keys_T[t - 1].count, count)
            t += 1
        at += num_keys
        if num_rows:
            first += num_nodes

"""The draft nodes of a round in a draft model, and the token batch that feeds them to it.

Node b < B is the root of branch b: its last committed token, whose KV is in the branch's slots. Every other node is a
draft token; once fed it has a slot, and it attends to its branch's slots, the nodes above it, and itself.

Shapes: as in `decoding.model.backend`; K candidates, F nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np

from decoding.fork import LazyProperty
from decoding.kv.prefix_cache import RadixNode
from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import group_by_prefix
from decoding.kv.slots import NO_SLOTS, Slots
from decoding.model.backend import AttentionBlock, Backend, Bools, Ints, KeyLists, TokenBatch
from decoding.model.key_lists import ListedRows, list_keys, order_by_prefix
from decoding.model.key_table import KeyTable
from decoding.model.segments import SegmentPlan, SequenceRows, plan_segments
from decoding.speculation.drafters.source import Floats

NOWHERE = -1


class DraftNodes:
    """The nodes of one round; parents are added before children. `NOWHERE` is the root of a branch without KV."""

    def __init__(self, sequences: Items[TokenSequence | None], k: int) -> None:
        self.sequences = tuple(sequences)
        count = len(self.sequences)
        self._branch = list(range(count))
        self._parent = [NOWHERE] * count
        self._token = [-1] * count
        self._depth = [0] * count
        self._slot = [0] * count  # 0 is the scratch slot, so it also means: not fed
        self._fed_index = [-1] * count  # index among the fed nodes of the branch
        self._fed: list[list[int]] = [[] for _ in range(count)]
        self._child: dict[tuple[int, int], int] = {}
        # Rows up to the last node with stored candidates, not for every node: most nodes are never fed.
        self._has_top_N: Bools = np.zeros(count, dtype=bool)
        self._ids_NK: Ints = np.full((count, k), -1, dtype=np.int64)
        self._logp_NK: Floats = np.full((count, k), -np.inf, dtype=np.float32)

    def root_node(self, branch: int) -> int:
        """Returns the root of a branch, or `NOWHERE`."""
        return branch if self._has_top_N[branch] else NOWHERE

    def token_position(self, node: int) -> int:
        """Returns the position of the node's token in its text."""
        sequence = self.sequences[self._branch[node]]
        assert sequence is not None
        return len(sequence.tokens) - 1 + self._depth[node]

    def parent_of(self, node: int) -> int:
        """Returns the parent of a node, `NOWHERE` for a root."""
        return self._parent[node]

    def add_node(self, parent: int, token: int) -> int:
        """Adds a draft token after `parent`; returns its node. *Mutates*."""
        node = len(self._parent)
        self._branch.append(self._branch[parent])
        self._parent.append(parent)
        self._token.append(token)
        self._depth.append(self._depth[parent] + 1)
        self._slot.append(0)
        self._fed_index.append(-1)
        self._child[parent, token] = node
        return node

    def store_top(self, nodes: Items[int], ids_FK: Ints, logp_FK: Floats) -> None:
        """Stores the candidates after these nodes, best first; `ids_FK` may be narrower than K. *Mutates*."""
        missing = len(self._parent) - len(self._has_top_N)
        if missing > 0:
            room = missing + len(self._parent)  # doubled: one copy per doubling
            pad = ((0, room), (0, 0))
            self._has_top_N = np.pad(self._has_top_N, (0, room))
            self._ids_NK = np.pad(self._ids_NK, pad, constant_values=-1)
            self._logp_NK = np.pad(self._logp_NK, pad, constant_values=-np.inf)
        at, width = list(nodes), ids_FK.shape[1]
        self._has_top_N[at] = True
        self._ids_NK[at, :width] = ids_FK
        self._logp_NK[at, :width] = logp_FK

    def top_tokens(self, nodes_F: Ints) -> tuple[Ints, Floats]:
        """Returns the stored ids and log-probabilities `[F, K]`, padded with -1 and -inf."""
        # Nodes beyond the stored rows were added and not fed; NOWHERE (-1) would read the last row.
        within_F = (nodes_F >= 0) & (nodes_F < len(self._has_top_N))
        ids_FK = np.full((len(nodes_F), self._ids_NK.shape[1]), -1, dtype=np.int64)
        logp_FK = np.full(ids_FK.shape, -np.inf, dtype=np.float32)
        ids_FK[within_F], logp_FK[within_F] = self._ids_NK[nodes_F[within_F]], self._logp_NK[nodes_F[within_F]]
        return ids_FK, logp_FK

    def top_after(self, node: int) -> tuple[Ints, Floats]:
        """Returns the candidates after a node and their log-probabilities."""
        ids_FK, logp_FK = self.top_tokens(np.array([node]))
        return ids_FK[0], logp_FK[0]

    def unfed_nodes(self, nodes: Iterable[int]) -> list[int]:
        """Returns those of the nodes and of their ancestors that were not fed yet, parents first."""
        unfed: set[int] = set()
        for node in nodes:
            while node >= len(self.sequences) and not self._slot[node] and node not in unfed:
                unfed.add(node)
                node = self._parent[node]
        return sorted(unfed)  # numbers rise from parent to child

    def find_path(self, branch: int, tokens: Iterable[int]) -> list[int]:
        """Returns the fed nodes along these tokens from the root, up to the first token without one."""
        node, path = branch, []
        for token in tokens:
            node = self._child.get((node, token), NOWHERE)
            if node == NOWHERE or not self._slot[node]:
                break
            path.append(node)
        return path

    def node_slots(self, nodes: Iterable[int]) -> Slots:
        """Returns the slots of these fed nodes."""
        return np.array([self._slot[node] for node in nodes], dtype=np.int64)

    def slots_except(self, nodes: Items[int]) -> Slots:
        """Returns the slots of the other fed nodes."""
        return self.node_slots({node for fed_nodes in self._fed for node in fed_nodes}.difference(nodes))

    def make_batch(
        self,
        nodes: Items[int],
        slots: Slots,
        backend: Backend,
        table: KeyTable | None = None,
    ) -> tuple[TokenBatch, Items[int]]:
        """Returns the batch that feeds these nodes, parents first, and the nodes in the order of its rows. *Mutates*.

        It has the form that `backend` takes; keys of segments are in the `table` of the branches' pool.
        """
        new_nodes: dict[int, list[int]] = {}
        for node, slot in zip(nodes, slots.tolist(), strict=True):
            fed_nodes = self._fed[self._branch[node]]
            self._slot[node], self._fed_index[node] = slot, len(fed_nodes)
            fed_nodes.append(node)
            new_nodes.setdefault(self._branch[node], []).append(node)
        blocks: list[AttentionBlock] = []
        segments: SegmentPlan | None = None
        lists: KeyLists | None = None
        rows: list[int] = []
        branches = list(new_nodes)
        if (tiles := backend.segment_tiles) is not None:
            parts = [self._list_keys(branch, new_nodes[branch]) for branch in branches]
            segments, order = plan_segments(parts, tiles, table)
            rows = [node for i in order for node in new_nodes[branches[i]]]
        elif backend.decoder_kind == "compiled":
            places, common = order_by_prefix([self._prefix_of(branch) for branch in branches])
            lists = list_keys([self._list_rows(branches[i], new_nodes[branches[i]]) for i in places], common)
            rows = [node for i in places for node in new_nodes[branches[i]]]
        else:
            for members, num_shared in _merge_groups(self._groups, new_nodes):
                blocks.append(self._make_block(members, num_shared, new_nodes, len(rows)))
                rows += [node for branch in members for node in new_nodes[branch]]  # the order of the block's real rows
        batch = TokenBatch(
            np.array([self._token[node] for node in rows], dtype=np.int64),
            np.array([self.token_position(node) for node in rows], dtype=np.int64),
            self.node_slots(rows),
            np.arange(len(rows)),
            tuple(blocks),
            segments,
            lists,
        )
        return batch, rows

    def _list_keys(self, branch: int, new_nodes: Items[int]) -> SequenceRows:
        sequence = self.sequences[branch]
        assert sequence is not None
        node_bits = [sum(1 << index for index in self._fed_indices(node)) for node in new_nodes]
        fed_slots = self.node_slots(self._fed[branch])
        # every committed token has its KV: no row of this pass is causal
        slots = sequence.slots[sequence.num_cached :]
        return SequenceRows(sequence.prefix_node, slots, 0, fed_slots, node_bits, sequence)

    def _list_rows(self, branch: int, new_nodes: Items[int]) -> ListedRows:
        # the new nodes are the last that were fed
        fed = self._fed[branch]
        parents = [self._parent[node] for node in fed]
        # roots are no draft nodes
        places = [self._fed_index[parent] if parent >= len(self.sequences) else -1 for parent in parents]
        slots = np.concatenate([self._slots_of(branch), self.node_slots(fed)])
        return ListedRows(slots, 0, np.array(places, dtype=np.int64), len(new_nodes))

    def _make_block(
        self, members: Items[int], num_shared: int, new_nodes: dict[int, list[int]], first: int
    ) -> AttentionBlock:
        private = [
            np.concatenate([self._slots_of(branch)[num_shared:], self.node_slots(self._fed[branch])])
            for branch in members
        ]
        rows_N = np.array([len(new_nodes[branch]) for branch in members])
        fed_N = np.array([len(self._fed[branch]) for branch in members])
        rows = int(rows_N.max())
        # member, row, fed index of a node that the row attends to
        edges = [
            (n, r, index)
            for n, branch in enumerate(members)
            for r, node in enumerate(new_nodes[branch])
            for index in self._fed_indices(node)
        ]
        # All committed tokens are visible to every row; of the draft nodes after them only ancestors and the node
        # itself, not siblings. Padding rows see the committed tokens too: a row without a visible key gives NaN.
        visible_NRU: Bools = np.zeros((len(members), rows, int(fed_N.max())), dtype=np.bool_)
        visible_NRU[tuple(np.array(edges).T)] = True
        real_rows = None if (rows_N == rows).all() else np.flatnonzero(np.arange(rows) < rows_N[:, None])
        shared = [self._slots_of(members[0])[:num_shared]]
        return AttentionBlock(first, int(rows_N.sum()), shared, private, fed_N, visible_NRU, real_rows)

    @LazyProperty
    def _groups(self) -> list[tuple[list[int], int]]:
        """Branches with a common prefix, and its length."""
        sequences = [(i, sequence) for i, sequence in enumerate(self.sequences) if sequence is not None]
        groups = group_by_prefix([sequence for _, sequence in sequences])
        return [([sequences[i][0] for i in group.members], group.shared_length) for group in groups]

    def _slots_of(self, branch: int) -> Slots:
        sequence = self.sequences[branch]
        return NO_SLOTS if sequence is None else sequence.slots

    def _prefix_of(self, branch: int) -> RadixNode | None:
        sequence = self.sequences[branch]
        return None if sequence is None else sequence.prefix_node

    def _fed_indices(self, node: int) -> list[int]:
        """Returns the indices, among the fed nodes of the branch, of the node and of its ancestors."""
        indices = []
        while node >= len(self.sequences):  # the root is no draft node: its KV is in the branch's slots
            indices.append(self._fed_index[node])
            node = self._parent[node]
        return indices


def _merge_groups(
    groups: Iterable[tuple[Items[int], int]], new_nodes: dict[int, list[int]]
) -> list[tuple[list[int], int]]:
    """Returns the groups of the branches with new nodes; branches alone in their group are merged into one."""
    single_branches: list[int] = []
    merged_groups: list[tuple[list[int], int]] = []
    for members, num_shared in groups:
        feeding = [branch for branch in members if branch in new_nodes]
        if len(feeding) == 1:
            single_branches += feeding
        elif feeding:
            merged_groups.append((feeding, num_shared))
    # 0 shared slots: their prefixes differ, and one padded block is faster than many of one row.
    return [*merged_groups, (single_branches, 0)] if single_branches else merged_groups

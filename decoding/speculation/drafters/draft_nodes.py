"""The draft nodes of a round in a draft model, and the token batch that feeds them to it.

Node b < B is the root of branch b: its last committed token, whose KV is in the branch's slots. Every other node is a
draft token; once fed it has a slot, and it attends to its branch's slots, the nodes above it, and itself.

Shapes: as in `decoding.model.backend`; K candidates, F nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np

from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import NO_SLOTS, Slots
from decoding.model.backend import AttentionBlock, Bools, Ints, TokenBatch
from decoding.speculation.drafters.source import Floats

NOWHERE = -1


class DraftNodes:
    """Grows during a round; a node is added after its parent. `NOWHERE` is the root of a branch without KV."""

    def __init__(self, sequences: Items[TokenSequence | None], k: int) -> None:
        self.sequences = tuple(sequences)
        count = len(self.sequences)
        self._branch = list(range(count))
        self._parent = [NOWHERE] * count
        self._token = [-1] * count
        self._depth = [0] * count
        self._slot = [0] * count
        self._fed_index = [-1] * count  # index among the fed nodes of the branch
        self._fed: list[list[int]] = [[] for _ in range(count)]
        self._child: dict[tuple[int, int], int] = {}
        self._known_N: Bools = np.zeros(count, dtype=bool)
        self._ids_NK: Ints = np.full((count, k), -1, dtype=np.int64)
        self._logp_NK: Floats = np.full((count, k), -np.inf, dtype=np.float32)

    def root_node(self, branch: int) -> int:
        """Returns the root of a branch, or `NOWHERE`."""
        return branch if self._known_N[branch] else NOWHERE

    def token_position(self, node: int) -> int:
        """Where in its text the node's token is."""
        sequence = self.sequences[self._branch[node]]
        assert sequence is not None
        return len(sequence.tokens) - 1 + self._depth[node]

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
        """What may follow these nodes, best first; `ids_FK` may be narrower than K. *Mutates*."""
        missing = len(self._parent) - len(self._known_N)
        if missing > 0:
            room = missing + len(self._parent)
            pad = ((0, room), (0, 0))
            self._known_N = np.pad(self._known_N, (0, room))
            self._ids_NK = np.pad(self._ids_NK, pad, constant_values=-1)
            self._logp_NK = np.pad(self._logp_NK, pad, constant_values=-np.inf)
        at, width = list(nodes), ids_FK.shape[1]
        self._known_N[at] = True
        self._ids_NK[at, :width] = ids_FK
        self._logp_NK[at, :width] = logp_FK

    def top_tokens(self, nodes_F: Ints) -> tuple[Ints, Floats]:
        """What was learned: ids and log-probabilities `[F, K]`, padded with -1 and -inf where nothing was."""
        within_F = (nodes_F >= 0) & (nodes_F < len(self._known_N))
        ids_FK = np.full((len(nodes_F), self._ids_NK.shape[1]), -1, dtype=np.int64)
        logp_FK = np.full(ids_FK.shape, -np.inf, dtype=np.float32)
        ids_FK[within_F], logp_FK[within_F] = self._ids_NK[nodes_F[within_F]], self._logp_NK[nodes_F[within_F]]
        return ids_FK, logp_FK

    def unfed_nodes(self, nodes: Iterable[int]) -> list[int]:
        """Those of the nodes, and of what is above them, that were not fed yet; parents first."""
        unfed: set[int] = set()
        for node in nodes:
            while node >= len(self.sequences) and not self._slot[node] and node not in unfed:
                unfed.add(node)
                node = self._parent[node]
        return sorted(unfed)

    def find_path(self, branch: int, tokens: Iterable[int]) -> list[int]:
        """Returns the fed nodes of these tokens after the root, as far as there are any."""
        node, path = branch, []
        for token in tokens:
            node = self._child.get((node, token), NOWHERE)
            if node == NOWHERE or not self._slot[node]:
                break
            path.append(node)
        return path

    def node_slots(self, nodes: Iterable[int] | None = None) -> Slots:
        """The pages of these fed nodes, of all by default."""
        chosen = nodes if nodes is not None else (node for fed in self._fed for node in fed)
        return np.array([self._slot[node] for node in chosen], dtype=np.int64)

    def make_batch(
        self, nodes: Items[int], pages: Slots, groups: Iterable[tuple[Items[int], int]]
    ) -> tuple[TokenBatch, Items[int]]:
        """The batch that feeds these nodes, parents first, and the nodes in the order of its rows. *Mutates*.

        `groups` partition the branches; those of a group have their first so many pages in common.
        """
        fresh: dict[int, list[int]] = {}
        for node, page in zip(nodes, pages.tolist(), strict=True):
            fed = self._fed[self._branch[node]]
            self._slot[node], self._fed_index[node] = page, len(fed)
            fed.append(node)
            fresh.setdefault(self._branch[node], []).append(node)
        blocks: list[AttentionBlock] = []
        rows: list[int] = []
        for members, shared in _merge_groups(groups, fresh):
            blocks.append(self._make_block(members, shared, fresh, len(rows)))
            rows += [node for branch in members for node in fresh[branch]]
        batch = TokenBatch(
            np.array([self._token[node] for node in rows], dtype=np.int64),
            np.array([self.token_position(node) for node in rows], dtype=np.int64),
            self.node_slots(rows),
            np.arange(len(rows)),
            tuple(blocks),
        )
        return batch, rows

    def _make_block(self, members: Items[int], shared: int, fresh: dict[int, list[int]], first: int) -> AttentionBlock:
        private = [self._slots_of(branch)[shared:] for branch in members]
        own_N = np.array([len(pages) for pages in private])
        rows_N = np.array([len(fresh[branch]) for branch in members])
        rows, keys = int(rows_N.max()), max(map(len, private)) + max(len(self._fed[branch]) for branch in members)
        private_NP = np.zeros((len(members), keys), dtype=np.int64)
        visible: list[tuple[int, int, int]] = []  # member, row, index of a node that the row attends to
        for n, (branch, pages) in enumerate(zip(members, private, strict=True)):
            fed = self._fed[branch]
            private_NP[n, : len(pages)] = pages
            private_NP[n, len(pages) : len(pages) + len(fed)] = [self._slot[node] for node in fed]
            visible += [(n, r, place) for r, node in enumerate(fresh[branch]) for place in self._fed_indices(node)]
        visible_NRP: Bools = np.repeat(np.arange(keys) < own_N[:, None, None], rows, axis=1)
        n, r, place = np.array(visible).T
        visible_NRP[n, r, own_N[n] + place] = True
        kept = None if (rows_N == rows).all() else np.flatnonzero(np.arange(rows) < rows_N[:, None])
        shared_GS = self._slots_of(members[0])[None, :shared]
        return AttentionBlock(first, int(rows_N.sum()), shared_GS, np.array([shared]), private_NP, visible_NRP, kept)

    def _slots_of(self, branch: int) -> Slots:
        sequence = self.sequences[branch]
        return NO_SLOTS if sequence is None else sequence.slots

    def _fed_indices(self, node: int) -> list[int]:
        """Returns the indices of the node and of those above it."""
        places = []
        while node >= len(self.sequences):
            places.append(self._fed_index[node])
            node = self._parent[node]
        return places


def _merge_groups(groups: Iterable[tuple[Items[int], int]], fresh: dict[int, list[int]]) -> list[tuple[list[int], int]]:
    """The groups as far as they have something to feed. Branches alone in theirs share nothing, but one block."""
    alone: list[int] = []
    together: list[tuple[list[int], int]] = []
    for members, shared in groups:
        feeding = [branch for branch in members if branch in fresh]
        if len(feeding) == 1:
            alone += feeding
        elif feeding:
            together.append((feeding, shared))
    return [*together, (alone, 0)] if alone else together

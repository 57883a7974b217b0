"""Packs the feeds of a round into one batch of rows, with the attention blocks that exploit what they share."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoding.kv.shared_prefix import Group
from decoding.kv.slots import Pages
from decoding.model.backend import AttentionBlock, Bools, Ints, RowBatch
from decoding.sequence import Sequence
from decoding.speculation.interfaces import Draft

EMPTY = Draft()


@dataclass(frozen=True)
class Feed:
    """What one sequence feeds: its next `count` pending tokens, then the nodes of a draft after the last of them.

    `pages` has one page per row. Rows `[wanted, rows)` are the ones whose output is needed.
    """

    sequence: Sequence
    count: int
    pages: Pages
    wanted: int
    draft: Draft = EMPTY
    rows: int = field(init=False)  # stored, not computed: asked for many times a round

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.count + len(self.draft))


@dataclass(frozen=True)
class _Shape:
    """A block in the making: feeds by group, padded to G x B sequences, R rows, S shared and P private keys."""

    groups: Mapping[int, tuple[Feed, ...]]
    rows: int
    shared: int
    private: int

    @property
    def cost(self) -> float:
        """In private keys that one could read instead; fitted to the times of random shapes on a CPU (within 15 %)."""
        groups = len(self.groups)
        sequences = groups * max(map(len, self.groups.values()))
        reading = 0.3 * groups * self.shared + sequences * self.private
        return 500 + reading + sequences * self.rows * (1.2 + (self.shared + self.private) / 60)

    def joined(self, other: _Shape) -> _Shape:
        both = {number: self.groups.get(number, ()) + feeds for number, feeds in other.groups.items()}
        return _Shape(
            {**self.groups, **both},
            max(self.rows, other.rows),
            max(self.shared, other.shared),
            max(self.private, other.private),
        )


def pack(feeds: Items[Feed], groups: Items[Group]) -> tuple[RowBatch, list[Feed]]:
    """The batch, and the feeds in the order their rows (and their wanted rows) have in it.

    `groups` partition indices of `feeds`; a group's shared length may not exceed what its members borrow.
    """
    shapes = _shapes(feeds, groups)
    ordered = [feed for shape in shapes for members in shape.groups.values() for feed in members]
    blocks, first = [], 0
    for shape in shapes:
        blocks.append(_block(shape, groups, first))
        first += blocks[-1].count
    tokens: list[int] = []
    for feed in ordered:
        start = feed.sequence.resident
        tokens += feed.sequence.tokens[start : start + feed.count]
        tokens += feed.draft.tokens
    wanted, at = [], 0
    for feed in ordered:
        wanted.append(np.arange(at + feed.wanted, at + feed.rows))
        at += feed.rows
    batch = RowBatch(
        np.array(tokens, dtype=np.int64),
        np.concatenate([positions(feed) for feed in ordered]),
        np.concatenate([feed.pages for feed in ordered]),
        np.concatenate(wanted),
        tuple(blocks),
    )
    return batch, ordered


def positions(feed: Feed) -> Ints:
    """Absolute positions of the feed's rows: a draft node sits as deep after the last token as it is in the draft."""
    start = feed.sequence.resident
    chain = np.arange(start, start + feed.count)
    if not len(feed.draft):
        return chain
    return np.concatenate([chain, start + feed.count - 1 + np.array(feed.draft.depths)])


def _shapes(feeds: Items[Feed], groups: Items[Group]) -> list[_Shape]:
    """Groups cut where rows or private keys differ by more than two, then joined wherever padding is cheaper."""
    pieces: list[_Shape] = []
    for number, group in enumerate(groups):
        alike: dict[tuple[int, int], list[Feed]] = {}
        for i in group.members:
            feed = feeds[i]
            keys = feed.sequence.resident - group.shared + feed.rows
            alike.setdefault((feed.rows.bit_length(), (keys // 64).bit_length()), []).append(feed)
        for _, members in sorted(alike.items(), key=lambda item: item[0]):
            rows = max(feed.rows for feed in members)
            private = max(feed.sequence.resident - group.shared + feed.rows for feed in members)
            pieces.append(_Shape({number: tuple(members)}, rows, group.shared, private))
    pieces.sort(key=lambda piece: piece.rows.bit_length())
    shapes: list[_Shape] = []
    for piece in pieces:
        if shapes:
            both = shapes[-1].joined(piece)
            if both.cost <= shapes[-1].cost + piece.cost:
                shapes[-1] = both
                continue
        shapes.append(piece)
    return shapes


def _block(shape: _Shape, groups: Items[Group], first: int) -> AttentionBlock:
    count, rows, width = len(shape.groups), shape.rows, max(map(len, shape.groups.values()))
    shared_G = np.array([groups[number].shared for number in shape.groups], dtype=np.int64)
    shared_GS = np.zeros((count, shape.shared), dtype=np.int64)
    private_NP = np.zeros((count * width, shape.private), dtype=np.int64)
    own_N = np.zeros(count * width, dtype=np.int64)  # private keys with KV from earlier rounds
    chain_N = np.ones(count * width, dtype=np.int64)
    rows_N = np.zeros(count * width, dtype=np.int64)
    drafted: list[tuple[int, Feed]] = []
    for g, (shared, feeds) in enumerate(zip(shared_G, shape.groups.values(), strict=True)):
        shared_GS[g, :shared] = feeds[0].sequence.pages[:shared]
        for n, feed in enumerate(feeds, start=g * width):
            own = feed.sequence.resident - shared
            private_NP[n, :own] = feed.sequence.pages[shared:]
            private_NP[n, own : own + feed.rows] = feed.pages
            own_N[n], chain_N[n], rows_N[n] = own, feed.count, feed.rows
            if len(feed.draft):
                drafted.append((n, feed))
    # Row i of a chain sees the keys before it and itself; every draft row sees the whole chain.
    row_R = np.arange(rows)
    limit_NR = own_N[:, None] + np.minimum(row_R, chain_N[:, None] - 1) + 1
    visible_NRP: Bools = np.arange(shape.private) < limit_NR[:, :, None]
    for n, feed in drafted:
        at, key = feed.count, own_N[n] + feed.count
        visible_NRP[n, at : at + len(feed.draft), key : key + len(feed.draft)] = ancestors(feed.draft)
    total = int(rows_N.sum())
    kept = None if total == len(rows_N) * rows else np.flatnonzero(row_R < rows_N[:, None])
    return AttentionBlock(first, total, shared_GS, shared_G, private_NP, visible_NRP, kept)


def ancestors(draft: Draft) -> Bools:
    """bool `[nodes, nodes]`: entry (i, j) says that j is i or above it.

    >>> ancestors(Draft((5, 6, 9), (-1, 0, 0))).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    seen: Any = np.eye(len(draft), dtype=bool)
    for node, parent in enumerate(draft.parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    result: Bools = seen
    return result

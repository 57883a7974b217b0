"""Packs the feeds of a round into one batch of rows, with the attention blocks that exploit what they share."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoding.backend import AttentionBlock, Bools, Ints, RowBatch
from decoding.pages import Pages
from decoding.sequence import Sequence
from decoding.sharing import Group
from decoding.speculation import Draft

EMPTY = Draft()
_BLOCK_COST = 1024  # keys one could read in the time a block takes by itself


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
    """A block in the making: for every group, the feeds in it; padded to G x B sequences, R rows, S and P keys."""

    groups: tuple[tuple[int, tuple[Feed, ...]], ...]  # (shared length, feeds)
    rows: int
    shared: int
    private: int

    @property
    def cost(self) -> float:
        width = max(len(feeds) for _, feeds in self.groups)
        keys = len(self.groups) * (self.shared + width * self.private)
        # A row looking at a key is cheap next to fetching the key, until there are many rows.
        return _BLOCK_COST + keys * (1 + self.rows / 16)

    def joined(self, other: _Shape) -> _Shape:
        groups = self.groups
        if other.groups[0][0] == groups[-1][0] and _same_group(groups[-1][1][0], other.groups[0][1][0], self.shared):
            head, tail = groups[-1], other.groups[0]
            groups = (*groups[:-1], (head[0], head[1] + tail[1]), *other.groups[1:])
        else:
            groups = groups + other.groups
        return _Shape(
            groups, max(self.rows, other.rows), max(self.shared, other.shared), max(self.private, other.private)
        )


def _same_group(a: Feed, b: Feed, shared: int) -> bool:
    last = min(shared, a.sequence.resident, b.sequence.resident) - 1
    return last >= 0 and bool(a.sequence.pages[last] == b.sequence.pages[last])


def pack(feeds: Items[Feed], groups: Items[Group]) -> tuple[RowBatch, list[Feed]]:
    """The batch, and the feeds in the order their rows (and their wanted rows) have in it.

    `groups` partition indices of `feeds`; a group's shared length may not exceed what its members borrow.
    """
    shapes = _shapes(feeds, groups)
    ordered = [feed for shape in shapes for _, members in shape.groups for feed in members]
    blocks, first = [], 0
    for shape in shapes:
        blocks.append(_block(shape, first))
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
    for group in groups:
        alike: dict[tuple[int, int], list[Feed]] = {}
        for i in group.members:
            feed = feeds[i]
            keys = feed.sequence.resident - group.shared + feed.rows
            alike.setdefault((feed.rows.bit_length(), (keys // 64).bit_length()), []).append(feed)
        for _, members in sorted(alike.items(), key=lambda item: item[0]):
            rows = max(feed.rows for feed in members)
            private = max(feed.sequence.resident - group.shared + feed.rows for feed in members)
            pieces.append(_Shape(((group.shared, tuple(members)),), rows, group.shared, private))
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


def _block(shape: _Shape, first: int) -> AttentionBlock:
    width = max(len(feeds) for _, feeds in shape.groups)
    groups, rows = len(shape.groups), shape.rows
    shared_GS = np.zeros((groups, shape.shared), dtype=np.int64)
    private_NP = np.zeros((groups * width, shape.private), dtype=np.int64)
    own_N = np.zeros(groups * width, dtype=np.int64)  # private keys with KV from earlier rounds
    chain_N = np.ones(groups * width, dtype=np.int64)
    rows_N = np.zeros(groups * width, dtype=np.int64)
    drafted: list[tuple[int, Feed]] = []
    for g, (shared, feeds) in enumerate(shape.groups):
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
    count = int(rows_N.sum())
    kept = None if count == len(rows_N) * rows else np.flatnonzero(row_R < rows_N[:, None])
    shared_len_G = np.array([shared for shared, _ in shape.groups], dtype=np.int64)
    return AttentionBlock(first, count, shared_GS, shared_len_G, private_NP, visible_NRP, kept)


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

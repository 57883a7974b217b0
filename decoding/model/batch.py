"""Packs the inputs of a round into one batch, with blocks, segments or lists of keys, which read shared prefixes once.

Shapes: G groups x B sequences = N, R tokens of a sequence, U of its keys are new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import SharedPrefixGroup, group_by_prefix
from decoding.kv.slots import SCRATCH_SLOT, Slots
from decoding.model.aligned_segments import plan_aligned_segments
from decoding.model.backend import AttentionBlock, Backend, Bools, KeyLists, TokenBatch
from decoding.model.key_lists import ListedRows, PrefixOrder, list_keys, order_by_prefix
from decoding.model.key_table import KeyTable
from decoding.model.segments import SegmentPlan, SegmentTiles, SequenceRows, ancestor_bits, plan_segments
from decoding.speculation.draft import Draft, keep_small_trees

S = TypeVar("S", bound=TokenSequence)

EMPTY_DRAFT = Draft()

_SCRATCH: Slots = np.array([SCRATCH_SLOT], dtype=np.int64)


@dataclass(eq=False)  # not frozen, which takes three times as long to make: there is one for each branch and round
class SequenceInput(Generic[S]):
    """The tokens that one sequence feeds: its next `num_committed` tokens, then the nodes of a draft after the last.

    [0, num_committed)           committed tokens without KV
    [num_committed, num_tokens)  draft nodes
    [first_output, num_tokens)   the tokens after which the model's output is needed

    `slots` has one slot per token.
    """

    sequence: S
    num_committed: int
    slots: Slots
    first_output: int
    draft: Draft = EMPTY_DRAFT
    num_tokens: int = field(init=False)  # stored, not computed: read many times a round

    def __post_init__(self) -> None:
        self.num_tokens = self.num_committed + len(self.draft.tokens)


@dataclass(frozen=True)
class _BlockLayout(Generic[S]):
    """Inputs by group, and the sizes to which their block will be padded."""

    groups: Mapping[int, tuple[SequenceInput[S], ...]]
    num_rows: int
    num_shared: int
    num_private: int

    @property
    def estimated_cost(self) -> float:
        """Time, in private keys read; fitted to measured times of random shapes on a CPU (within 15 %)."""
        groups = len(self.groups)
        sequences = groups * max(map(len, self.groups.values()))
        reading = 0.3 * groups * self.num_shared + sequences * self.num_private
        return 500 + reading + sequences * self.num_rows * (1.2 + (self.num_shared + self.num_private) / 60)

    def merge_with(self, other: _BlockLayout[S]) -> _BlockLayout[S]:
        both = {number: self.groups.get(number, ()) + inputs for number, inputs in other.groups.items()}
        return _BlockLayout(
            {**self.groups, **both},
            max(self.num_rows, other.num_rows),
            max(self.num_shared, other.num_shared),
            max(self.num_private, other.num_private),
        )


def pack_batch(
    inputs: Sequence[SequenceInput[S]], groups: Sequence[SharedPrefixGroup]
) -> tuple[TokenBatch, list[SequenceInput[S]]]:
    """Returns the batch with blocks, and the inputs in the order that their tokens (and their outputs) have in it.

    `groups` partition indices of `inputs`; a group's shared length may not exceed its members' `num_cached`.
    """
    layouts = _lay_out_blocks(inputs, groups)
    ordered = [item for layout in layouts for members in layout.groups.values() for item in members]
    blocks, first = [], 0
    for layout in layouts:
        blocks.append(_build_block(layout, groups, first))
        first += blocks[-1].count
    return _build_batch(ordered, tuple(blocks), None), ordered


def pack_segments(
    inputs: Sequence[SequenceInput[S]], tiles: SegmentTiles, table: KeyTable | None = None
) -> tuple[TokenBatch, list[SequenceInput[S]]]:
    """Returns the batch with segments, and the inputs in the order that their tokens (and their outputs) have in it.

    *Mutates* the table of the sequences' pool; without one the batch has all keys, as it has with aligned tiles.
    """
    parts = [_list_keys(item) for item in inputs]
    plan, order = plan_aligned_segments(parts, tiles) if tiles.is_aligned else plan_segments(parts, tiles, table)
    ordered = [inputs[i] for i in order]
    return _build_batch(ordered, (), plan), ordered


def pack_lists(inputs: Sequence[SequenceInput[S]], order: PrefixOrder) -> tuple[TokenBatch, list[SequenceInput[S]]]:
    """Returns the batch with lists of keys, and the inputs in the order that their tokens (and outputs) have in it."""
    ordered = [inputs[i] for i in order.places_P]
    rows = [
        ListedRows(
            item.sequence.view_slots(0, item.slots),
            item.num_committed,
            item.draft.columns.parents_N,
            len(item.draft.tokens),
        )
        for item in ordered
    ]
    return _build_batch(ordered, (), None, list_keys(rows, order.common_P)), ordered


def pack_inputs(
    inputs: Sequence[SequenceInput[S]], backend: Backend, table: KeyTable | None = None
) -> tuple[TokenBatch, list[SequenceInput[S]]]:
    """Returns the batch in the form that a backend takes, and the inputs in its order. *Mutates* the table."""
    if (tiles := backend.segment_tiles) is not None:
        return pack_segments(inputs, tiles, table)
    sequences = [item.sequence for item in inputs]
    if backend.decoder_kind == "compiled":
        return pack_lists(inputs, order_by_prefix([sequence.prefix_node for sequence in sequences]))
    return pack_batch(inputs, group_by_prefix(sequences))


def _list_keys(item: SequenceInput[S]) -> SequenceRows:
    sequence, committed = item.sequence, item.num_committed
    own_slots = sequence.view_slots(sequence.num_cached, item.slots[:committed])
    node_bits = ancestor_bits(item.draft.parents)
    return SequenceRows(sequence.prefix_node, own_slots, committed, item.slots[committed:], node_bits, sequence)


def _build_batch(
    ordered: Sequence[SequenceInput[S]],
    blocks: tuple[AttentionBlock, ...],
    segments: SegmentPlan | None,
    lists: KeyLists | None = None,
) -> TokenBatch:
    # lists: an array for each of many short sequences takes longer to make than all their numbers
    tokens: list[int] = []
    positions: list[int] = []
    outputs: list[int] = []
    at = 0
    for item in ordered:
        start, committed, draft = item.sequence.num_computed, item.num_committed, item.draft
        end = start + committed
        tokens += item.sequence.tokens[start:end]
        positions += range(start, end)
        if draft.tokens:
            tokens += draft.tokens
            # a draft node's is its depth after the last committed token, so siblings share one
            positions += [end - 1 + depth for depth in draft.depths]
        outputs += range(at + item.first_output, at + item.num_tokens)
        at += item.num_tokens
    return TokenBatch(
        np.array(tokens, dtype=np.int64),
        np.array(positions, dtype=np.int64),
        ordered[0].slots if len(ordered) == 1 else np.concatenate([item.slots for item in ordered]),
        np.array(outputs, dtype=np.int64),
        blocks,
        segments,
        lists,
    )


def _lay_out_blocks(inputs: Sequence[SequenceInput[S]], groups: Sequence[SharedPrefixGroup]) -> list[_BlockLayout[S]]:
    """Cuts groups where tokens or private keys differ by more than a factor of two, then merges where padding pays."""
    pieces: list[_BlockLayout[S]] = []
    for number, group in enumerate(groups):
        alike: dict[tuple[int, int], list[SequenceInput[S]]] = {}
        for i in group.members:
            item = inputs[i]
            # bit lengths: sizes of the same power of two, and for keys of the same power of two times 64
            key = (item.num_tokens.bit_length(), (_count_private_keys(item, group) // 64).bit_length())
            alike.setdefault(key, []).append(item)
        for _, members in sorted(alike.items(), key=lambda entry: entry[0]):
            num_rows = max(item.num_tokens for item in members)
            num_private = max(_count_private_keys(item, group) for item in members)
            pieces.append(_BlockLayout({number: tuple(members)}, num_rows, group.shared_length, num_private))
    # a stable sort: the order of the packed tokens follows from the groups alone
    pieces.sort(key=lambda piece: piece.num_rows.bit_length())
    layouts: list[_BlockLayout[S]] = []
    for piece in pieces:
        if layouts:
            merged = layouts[-1].merge_with(piece)
            if merged.estimated_cost <= layouts[-1].estimated_cost + piece.estimated_cost:
                layouts[-1] = merged
                continue
        layouts.append(piece)
    return layouts


def _count_private_keys(item: SequenceInput[S], group: SharedPrefixGroup) -> int:
    return item.sequence.num_slots - group.shared_length + item.num_tokens


def _build_block(layout: _BlockLayout[S], groups: Sequence[SharedPrefixGroup], first: int) -> AttentionBlock:
    count, rows, width = len(layout.groups), layout.num_rows, max(map(len, layout.groups.values()))
    shared: list[Slots] = []
    # a padding sequence sees one scratch key, so that no softmax is over nothing
    private: list[Slots] = [_SCRATCH] * (count * width)
    committed, new, rows_of = ([value] * (count * width) for value in (1, 1, 0))
    drafted: list[tuple[int, SequenceInput[S]]] = []
    for g, (number, members) in enumerate(layout.groups.items()):
        num_shared = groups[number].shared_length
        shared.append(members[0].sequence.slots[:num_shared])
        for n, item in enumerate(members, start=g * width):
            private[n] = item.sequence.view_slots(num_shared, item.slots)
            committed[n], new[n], rows_of[n] = item.num_committed, item.num_tokens, item.num_tokens
            if len(item.draft):
                drafted.append((n, item))
    total, new_N = sum(rows_of), np.array(new, dtype=np.int64)
    if rows == 1:  # plain decoding: of its new keys each token sees the only one
        visible_NRU: Bools = np.array([[[True]]] * len(private))
    else:
        visible_NRU = _show_new_keys(rows, committed, max(new), drafted)
    real_rows = None
    if total < len(private) * rows:
        real_rows = np.flatnonzero(np.arange(rows) < np.array(rows_of)[:, None])
    return AttentionBlock(first, total, shared, private, new_N, visible_NRU, real_rows)


def _show_new_keys(
    rows: int, committed: Sequence[int], most_new: int, drafted: Sequence[tuple[int, SequenceInput[S]]]
) -> Bools:
    """Returns `visible_NRU` of a block; `drafted` are the sequences with a draft, `committed` the numbers of all."""
    visible_NRU: Bools = np.zeros((len(committed), rows, most_new), dtype=np.bool_)
    # Row i of the committed tokens sees those before it and itself (hence + 1). Draft rows see all committed
    # tokens: the minimum stops at the last of them, and what they see of each other is set below.
    if max(committed) == 1:  # decoding alone
        visible_NRU[:, :, 0] = True
    else:
        limit_NR = np.minimum(np.arange(rows), np.array(committed)[:, None] - 1) + 1
        np.less(np.arange(visible_NRU.shape[2]), limit_NR[:, :, None], out=visible_NRU)
    for n, item in drafted:
        row = item.num_committed
        end = row + len(item.draft)
        visible_NRU[n, row:end, row:end] = ancestor_mask(item.draft)
    return visible_NRU


def ancestor_mask(draft: Draft) -> Bools:
    """Returns bool `[nodes, nodes]`: entry (i, j) is true where node j is i or one of its ancestors.

    >>> ancestor_mask(Draft((5, 6, 9), (-1, 0, 0))).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    return _find_ancestors(draft.parents)


@keep_small_trees
def _find_ancestors(parents: tuple[int, ...]) -> Bools:
    words = -(-len(parents) // 8)  # bytes of a row
    rows = b"".join(bits.to_bytes(words, "little") for bits in ancestor_bits(parents))
    bytes_NW = np.frombuffer(rows, dtype=np.uint8).reshape(len(parents), words)
    mask: Bools = np.unpackbits(bytes_NW, axis=1, count=len(parents), bitorder="little").view(np.bool_)
    mask.flags.writeable = False
    return mask

"""Packs the rounds of an engine, and keeps of a round what the next one has in common with it.

With segments a plain round after a plain one is packed from the plan of that one. Where the same sequences feed one
token each, a plan differs from the last one in few numbers: every sequence has a key more. NumPy adds them, whatever
the tree of prefixes is. Planned anew, such a round takes a visit per sequence and node: of 64 branches, most of what
keeps a GPU waiting.

Shapes: S sequences, in the order of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from decoding.kv.prefix_cache import RadixNode
from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import SharedPrefixGroup, group_by_prefix
from decoding.model.backend import Backend, TokenBatch
from decoding.model.batch import SequenceInput, pack_batch, pack_lists, pack_segments
from decoding.model.key_lists import order_by_prefix
from decoding.model.key_table import KeyTable
from decoding.model.segments import SegmentTiles, count_partials

S = TypeVar("S", bound=TokenSequence)


class RoundPacker(Protocol[S]):
    """Packs the rounds of one engine in the form that its backend takes."""

    def pack_round(self, inputs: Sequence[SequenceInput[S]]) -> tuple[TokenBatch, list[SequenceInput[S]]]:
        """Returns the batch, and the inputs in the order of their tokens in it. *Mutates* what it keeps of rounds."""
        ...

    def forget_rounds(self) -> None:
        """Lets the sequences of the last round go. *Mutates*: the next round is planned anew."""
        ...


def make_packer(backend: Backend, table: KeyTable) -> RoundPacker[Any]:
    """Returns the packer for rounds of a backend over the pool of the table."""
    if backend.segment_tiles is not None:
        return SegmentPacker(backend.segment_tiles, table)
    return ListPacker() if backend.decoder_kind == "compiled" else BlockPacker()


class BlockPacker(Generic[S]):
    """Packs blocks. Keeps the grouping of sequences."""

    def __init__(self) -> None:
        self._grouping: tuple[object, list[SharedPrefixGroup]] = None, []

    def pack_round(self, inputs: Sequence[SequenceInput[S]]) -> tuple[TokenBatch, list[SequenceInput[S]]]:
        """See `RoundPacker`."""
        sequences = [item.sequence for item in inputs]
        # Locks pin cached prefixes, so a grouping stays valid until a request joins, leaves or inserts.
        key = [(sequence.arrival, sequence.num_cached) for sequence in sequences]
        if self._grouping[0] != key:
            self._grouping = key, group_by_prefix(sequences)
        return pack_batch(inputs, self._grouping[1])

    def forget_rounds(self) -> None:
        """See `RoundPacker`."""
        self._grouping = None, []


class ListPacker(Generic[S]):
    """Packs lists of keys. Keeps the order of sequences, which follows from their prefixes."""

    def __init__(self) -> None:
        self._nodes: list[RadixNode | None] = []
        self._order = order_by_prefix([])

    def pack_round(self, inputs: Sequence[SequenceInput[S]]) -> tuple[TokenBatch, list[SequenceInput[S]]]:
        """See `RoundPacker`."""
        nodes = [item.sequence.prefix_node for item in inputs]
        if nodes != self._nodes:
            # a node keeps its end where it is split later, so neighbours keep what they have in common
            self._nodes, self._order = nodes, order_by_prefix(nodes)
        return pack_lists(inputs, self._order)

    def forget_rounds(self) -> None:
        """See `RoundPacker`."""
        self._nodes, self._order = [], order_by_prefix([])


class SegmentPacker(Generic[S]):
    """Packs segments, whose keys are in one table."""

    def __init__(self, tiles: SegmentTiles, table: KeyTable) -> None:
        self._tiles, self._table = tiles, table
        self._plain: _PlainRounds[S] | None = None

    def pack_round(self, inputs: Sequence[SequenceInput[S]]) -> tuple[TokenBatch, list[SequenceInput[S]]]:
        """Returns what `pack_segments` does. *Mutates* the table."""
        plain, self._plain = self._plain, None
        if plain is not None and plain.is_before(inputs) and (batch := plain.add_tokens(inputs)) is not None:
            self._plain = plain
            return batch, [inputs[i] for i in plain.order]
        batch, ordered = pack_segments(inputs, self._tiles, self._table)
        # aligned splits are not in the table
        if not self._tiles.is_aligned and all(item.num_tokens == 1 and not item.first_output for item in inputs):
            self._plain = _PlainRounds(inputs, ordered, batch, self._table)
        return batch, ordered

    def forget_rounds(self) -> None:
        """Lets the sequences of the last round go. *Mutates*: the next round is planned anew."""
        self._plain = None


class _PlainRounds(Generic[S]):
    """Rounds in which the same sequences feed one token each, from the first of them on.

    order  indices of a round's inputs in the order of their rows
    """

    def __init__(
        self,
        inputs: Sequence[SequenceInput[S]],
        ordered: Sequence[SequenceInput[S]],
        batch: TokenBatch,
        table: KeyTable,
    ) -> None:
        places = {id(item): i for i, item in enumerate(inputs)}
        self.order = [places[id(item)] for item in ordered]
        # what stays as it is, but for tokens computed, while the plan of the next round is the last one with a key more
        self._first = [
            (one, one.prefix_node, one.slots_version, one.num_computed) for one in (i.sequence for i in inputs)
        ]
        last_nodes = {id(node): node for _, node, _, _ in self._first if node is not None}.values()
        nodes = {id(node): node for last in last_nodes for node in last.path_from_root()}.values()
        # a node that is split has another array
        self._slots = [(node, node.slots) for node in nodes]
        self._batch, self._num_rounds, self._table = batch, 1, table
        self._sequences = [item.sequence for item in ordered]
        self._runs = table.list_runs(self._sequences)
        assert batch.segments is not None
        first_key_I = batch.segments.items.first_key
        by_key = np.argsort(first_key_I)
        # the item of a sequence's own keys: a run of one row is one item, and intervals of the table are apart
        self._item_S = by_key[np.searchsorted(first_key_I, self._runs.firsts_S, sorter=by_key)]

    def is_before(self, inputs: Sequence[SequenceInput[S]]) -> bool:
        """Returns whether these are the inputs of the next such round."""
        rounds = self._num_rounds
        return (
            len(inputs) == len(self._first)
            and all(
                item.sequence is sequence
                and item.num_tokens == 1
                and not item.first_output
                and sequence.num_computed == computed + rounds
                and sequence.prefix_node is node
                and sequence.slots_version == version
                for item, (sequence, node, version, computed) in zip(inputs, self._first, strict=True)
            )
            and all(node.slots is slots for node, slots in self._slots)
        )

    def add_tokens(self, inputs: Sequence[SequenceInput[S]]) -> TokenBatch | None:
        """Returns the batch of the next round; None where the table must be planned anew. *Mutates* the table."""
        batch, plan = self._batch, self._batch.segments
        assert plan is not None
        slots_S = np.concatenate([inputs[i].slots for i in self.order])
        update = self._table.extend_runs(self._runs, slots_S)
        if update is None:
            return None
        num_keys_I, offset_I = plan.items.num_keys.copy(), plan.items.causal_offset.copy()
        num_keys_I[self._item_S] += 1
        offset_I[self._item_S] += 1
        items, first_partial = plan.items._replace(num_keys=num_keys_I, causal_offset=offset_I), plan.first_partial
        if (num_keys_I[self._item_S] % plan.tiles.num_keys == 1).any():  # a split more
            first_partial = count_partials(items, plan.tiles.num_keys, len(slots_S))
        self._num_rounds += 1
        positions_S = batch.positions_T + 1
        places = zip(self._sequences, positions_S.tolist(), strict=True)
        self._batch = replace(
            batch,
            tokens_T=np.array([sequence.tokens[position] for sequence, position in places], dtype=np.int64),
            positions_T=positions_S,
            slots_T=slots_S,
            segments=replace(plan, items=items, keys=update[0], first_partial=first_partial, update=update[1]),
        )
        return self._batch

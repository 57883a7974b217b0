"""Keeps the slots that attention reads in one tensor on the model's device, so that a round sends only what is new.

A run of keys has an interval of the table: the slots of a node of the prefix cache, or those of a sequence after its
cached prefix. Of a node they are sent once, because its array of slots is never changed but replaced. Those of a
sequence only grow, and its interval has room for that; `TokenSequence.slots_version` says when they changed otherwise.
The slots of draft nodes are sent each time, to the end of the table.

    [0, end)         intervals, in the order in which runs were first read
    [top, capacity)  what only the last plan reads

Intervals of runs that are gone are not used again. When both parts meet, the table starts over: that round sends all
that it reads. The table holds neither nodes nor sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt

from decoding.kv.prefix_cache import RadixNode
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import NO_SLOTS, Slots

if TYPE_CHECKING:
    # for annotations only: planning needs no torch
    import torch
    from torch import Tensor

_SLOT_SHARE = 4
"""Numbers of the table per slot of the pool. After a new start a slot of a node takes one and one of a sequence two, as
it may grow. So half of the table is left for later runs, and it starts over once in thousands of rounds."""
TABLE_BYTES_PER_SLOT = 4 * _SLOT_SHARE
_LEAST_ROOM, _LEAST_NUMBERS = 64, 1024


class TableFull(Exception):
    """Raised while a round is planned that does not fit the rest of the table: `KeyTable.start_over`, and again."""


class KeyUpdate(NamedTuple):
    """Where a round's new keys go: positions in a table, int64 `[U]`, none of them twice."""

    table: KeyTable
    positions: npt.NDArray[np.int64]


@dataclass(eq=False)
class _NodeRun:
    slots: ReferenceType[Slots]
    first: int


@dataclass(eq=False)
class _SequenceRun:
    """An interval for `room` slots of a sequence; the first `num_sent` of its slots of `version` are there."""

    sequence: ReferenceType[TokenSequence]
    first: int
    room: int
    version: int
    num_sent: int = 0


@dataclass(eq=False)
class SequenceRuns:
    """The runs of some sequences S: where they begin, and where the next slot of each goes.

    start      the start of the table after which they were written
    num_left   further slots for which each of them has room
    """

    runs: list[_SequenceRun]
    firsts_S: npt.NDArray[np.int64]
    ends_S: npt.NDArray[np.int64]
    start: int
    num_left: int


class KeyTable:
    """A table for the keys of one pool of `num_slots` slots, and what of them is on the device.

    A round is planned between `begin_round` and `take_update`, and its update written by `write` before its layers run.
    A round whose update was not written, as for want of memory, leaves unknown what is there: the next one starts over.

    capacity  numbers of the table
    """

    def __init__(self, num_slots: int) -> None:
        self.capacity = _SLOT_SHARE * num_slots + _LEAST_NUMBERS
        self._tensor: Tensor | None = None
        self._is_written, self._is_cramped, self._has_started = True, False, False
        self._num_starts = 0
        self._forget_runs()

    def begin_round(self) -> None:
        """Begins the plan of a round. *Mutates*."""
        if not self._is_written:
            self._forget_runs()
        self._is_written = False
        self._begin_update()

    def add_node(self, node: RadixNode) -> int:
        """Returns the position of the first slot of a node. *Mutates*. Raises: TableFull."""
        slots = node.slots
        run = self._nodes.get(id(slots))
        # the id of an array that is gone may be that of another one
        if run is None or run.slots() is not slots:
            run = self._nodes[id(slots)] = _NodeRun(ref(slots), self._take_interval(len(slots)))
            self._send(run.first, slots)
        return run.first

    def add_sequence(self, sequence: TokenSequence, slots: Slots, num_new: int) -> int:
        """Returns the position of the first of a sequence's slots after its cached prefix. *Mutates*.

        The last `num_new` of them are those of tokens that the round computes. They are sent again by the next one: it
        may give the tokens other slots. Raises: TableFull.
        """
        run = self._sequences.get(id(sequence))
        if run is None or run.sequence() is not sequence or len(slots) > run.room:
            room = max(_LEAST_ROOM, 2 * len(slots))
            run = _SequenceRun(ref(sequence), self._take_interval(room), room, sequence.slots_version)
            self._sequences[id(sequence)] = run
        elif run.version != sequence.slots_version:
            run.version, run.num_sent = sequence.slots_version, 0
        self._send(run.first + run.num_sent, slots[run.num_sent :])
        run.num_sent = len(slots) - num_new
        return run.first

    def add_transient(self, slots: Slots) -> int:
        """Returns the position of the first of some slots that only this round reads. *Mutates*. Raises: TableFull."""
        if self._top - len(slots) < self._end:
            raise TableFull
        self._top -= len(slots)
        self._send(self._top, slots)
        return self._top

    def take_update(self) -> tuple[npt.NDArray[np.int32], KeyUpdate]:
        """Ends the plan of a round: returns the slots to be written, and where. *Mutates*."""
        if self._has_started:
            # where half of it was live at the start, it would soon start over again
            self._has_started, self._is_cramped = False, self._end > self.capacity // 2
        firsts, counts = np.array(self._firsts), np.array([len(slots) for slots in self._pieces])
        slots_U = np.concatenate(self._pieces, dtype=np.int32)
        # of slot i of a piece: first + i, where i counts from the beginning of the piece
        offsets = firsts - (np.cumsum(counts) - counts)
        positions_U: npt.NDArray[np.int64] = np.repeat(offsets, counts) + np.arange(len(slots_U))
        self._begin_update()  # holds the slots of nodes no longer
        return slots_U, KeyUpdate(self, positions_U)

    def list_runs(self, sequences: Sequence[TokenSequence]) -> SequenceRuns:
        """Returns the runs of sequences that the last planned round has read."""
        runs = [self._sequences[id(sequence)] for sequence in sequences]
        firsts_S = np.array([run.first for run in runs], dtype=np.int64)
        # the last slot, of a token that this round computes, is not counted as sent
        ends_S = firsts_S + np.array([run.num_sent + 1 for run in runs], dtype=np.int64)
        num_left = min(run.room - run.num_sent - 1 for run in runs)
        return SequenceRuns(runs, firsts_S, ends_S, self._num_starts, num_left)

    def extend_runs(self, runs: SequenceRuns, slots_S: Slots) -> tuple[npt.NDArray[np.int32], KeyUpdate] | None:
        """Plans a round of these sequences alone, each with one key more than in the last, which kept its slots.

        Returns what `take_update` does; None where the round must be planned anew. *Mutates*.
        """
        if not (self._is_written and runs.start == self._num_starts and runs.num_left):
            return None
        self._is_written = False
        update = KeyUpdate(self, runs.ends_S)
        runs.num_left, runs.ends_S = runs.num_left - 1, runs.ends_S + 1
        for run in runs.runs:
            run.num_sent += 1
        return slots_S.astype(np.int32), update

    def start_over(self) -> None:
        """Begins the plan of a round anew, after `TableFull`, in an empty table. *Mutates*: the table may grow.

        It grows where the round alone does not fit, or where the last start left less than half of it.
        """
        if self._is_cramped:
            self.capacity = 2 * self.capacity
        self._has_started = self._is_cramped = True
        self._forget_runs()

    def open_on(self, device: torch.device) -> Tensor:
        """Returns the table on its device, int32 `[capacity]`, which stays the same until it grows. *Mutates*."""
        import torch  # here: planning needs none

        if self._tensor is None or len(self._tensor) != self.capacity:
            self._tensor = None  # its memory may be needed for the new one
            self._tensor = torch.zeros(self.capacity, dtype=torch.int32, device=device)
        return self._tensor

    def write(self, positions_U: Tensor, slots_U: Tensor) -> Tensor:
        """Writes the update of the last planned round on the device; returns the table. *Mutates*."""
        keys = self.open_on(slots_U.device)
        keys.index_copy_(0, positions_U, slots_U)
        self._is_written = True
        return keys

    def release(self) -> None:
        """Frees the memory on the device. *Mutates*."""
        self._tensor = None
        self._forget_runs()

    def _forget_runs(self) -> None:
        # by id: the keys must not keep what they are of
        self._nodes: dict[int, _NodeRun] = {}
        self._sequences: dict[int, _SequenceRun] = {}
        self._end = 0
        self._num_starts += 1
        self._begin_update()

    def _begin_update(self) -> None:
        self._top = self.capacity
        # there is always one array to concatenate
        self._firsts, self._pieces = [0], [NO_SLOTS]

    def _take_interval(self, length: int) -> int:
        first = self._end
        if first + length > self._top:
            raise TableFull
        self._end += length
        return first

    def _send(self, first: int, slots: Slots) -> None:
        if len(slots):
            self._firsts.append(first)
            self._pieces.append(slots)

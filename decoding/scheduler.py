"""Which sequences run next, how many tokens each feeds, and who gives way when pages run out. No tensors.

Why it cannot deadlock: a sequence is accepted only if it fits the pool alone; the oldest running one is
never preempted; whatever the others hold becomes evictable when they are. So the oldest always advances.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Generic, TypeVar

from decoding.kv.kv_cache import SharedKV
from decoding.kv.prefix_cache import common_length
from decoding.sequence import Sequence

S = TypeVar("S", bound=Sequence)

_HEADROOM = 32  # pages left for each running sequence to grow into before another is admitted
_LEAST_CHUNK = 16  # rows a refill gets even when decoding alone fills the round


@dataclass(frozen=True)
class Turn(Generic[S]):
    """A sequence's part in a round: the next `count` of its pending tokens."""

    sequence: S
    count: int

    @property
    def complete(self) -> bool:
        """Whether all committed tokens will have KV, so that the next token can be chosen."""
        return self.count == self.sequence.pending


class Scheduler(Generic[S]):
    """A queue in order of arrival, and the running set, admitted from its front."""

    def __init__(self, kv: SharedKV, *, max_running: int, max_rows: int) -> None:
        self._kv = kv
        self._max_running, self._max_rows = max_running, max_rows
        self.waiting: list[S] = []
        self.running: list[S] = []
        self.preemptions = 0

    def enqueue(self, sequence: S) -> None:
        """Adds a sequence at its place in order of arrival: one that was preempted comes before newer ones."""
        insort(self.waiting, sequence, key=lambda waiting: waiting.arrival)

    def admit(self) -> list[S]:
        """Moves waiting sequences to the running set, oldest first, while they fit; those it moved."""
        admitted: list[S] = []
        for sequence in list(self.waiting):
            if len(self.running) >= self._max_running:
                break
            match = self._kv.find(sequence)
            if self._being_filled(sequence, len(match)):
                continue
            self._kv.adopt(sequence, match)
            if self.running and self._kv.available < sequence.pending + _HEADROOM * (1 + len(self.running)):
                self._kv.drop(sequence)
                break
            self.waiting.remove(sequence)
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def _being_filled(self, sequence: S, cached: int) -> bool:
        """Whether a running sequence is about to publish more of this prefix than is cached now.

        Waiting for it is what makes sixteen siblings submitted together compute their prompt once.
        """
        ids = None
        for other in self.running:
            if other.pending > 1:
                ids = sequence.ids(sequence.reusable) if ids is None else ids
                if common_length(ids, other.ids()) > cached:
                    return True
        return False

    def turns(self) -> list[Turn[S]]:
        """This round's parts, for which pages are available. *Mutates*: preempts the youngest when they are not."""
        turns = self._divide()
        while sum(turn.count for turn in turns) > self._kv.available:
            assert len(self.running) > 1, "a sequence that was accepted does not fit the pool alone"
            self.preempt(max(self.running, key=lambda sequence: sequence.arrival))
            turns = self._divide()
        return turns

    def _divide(self) -> list[Turn[S]]:
        """Everyone who decodes gets one row; the rest of the round goes to refills, oldest first."""
        filling = sorted((s for s in self.running if s.pending > 1), key=lambda s: s.arrival)
        turns = [Turn(s, 1) for s in self.running if s.pending == 1]
        room = max(self._max_rows - len(turns), _LEAST_CHUNK)
        for sequence in filling:
            if room <= 0:
                break
            turns.append(Turn(sequence, min(sequence.pending, room)))
            room -= turns[-1].count
        return turns

    def spare_rows(self, turns: Items[Turn[S]]) -> int:
        """How many draft rows may be added to these turns without preempting anybody."""
        rows = sum(turn.count for turn in turns)
        return max(0, min(self._max_rows - rows, self._kv.available - rows))

    def preempt(self, sequence: S) -> None:
        """Sends a running sequence back to the queue. Its tokens are kept and fed again later; its KV may survive."""
        self.running.remove(sequence)
        self._kv.release(sequence)
        self.enqueue(sequence)
        self.preemptions += 1

    def leave(self, sequence: S, *, keep_kv: bool) -> None:
        """Removes a finished or abandoned sequence, wherever it is."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        if keep_kv:
            self._kv.release(sequence)
        else:
            self._kv.drop(sequence)

    def abandon_running(self) -> list[S]:
        """Empties the running set after a broken round and restores the account of pages; those it removed."""
        gone, self.running = self.running, []
        self._kv.recover(gone)
        return gone

    def check(self) -> None:
        """Asserts the order of the queue and the account of pages."""
        arrivals = [sequence.arrival for sequence in self.waiting]
        assert arrivals == sorted(set(arrivals))
        assert all(sequence.resident == 0 and sequence.node is None for sequence in self.waiting)
        self._kv.check(self.running)

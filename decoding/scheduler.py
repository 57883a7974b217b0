"""Decides which sequences run next, how many tokens each feeds and which is preempted when slots run out. No tensors.

It cannot deadlock: a sequence is accepted only if it fits the pool alone, the oldest running one is never preempted,
and preempting the others makes their slots evictable. So the oldest always advances.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from decoding.kv.kv_cache import KVCache
from decoding.kv.out_of_memory import is_out_of_memory
from decoding.kv.prefix_cache import common_length
from decoding.kv.round_limit import RoundLimit
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import Slots
from decoding.validation import require_count

S = TypeVar("S", bound=TokenSequence)

HEADROOM_SLOTS = 32
"""Slots left for each running sequence to grow into before another is admitted."""

_MIN_CHUNK = 16  # tokens of a prompt that a round feeds even when decoding alone fills it


@dataclass(eq=False)  # not frozen: one is made for each branch and round
class ScheduledSequence(Generic[S]):
    """A sequence's part in a round: the next `num_tokens` of its uncomputed tokens.

    is_complete  whether all committed tokens will have KV, so that the next token can be chosen
    """

    sequence: S
    num_tokens: int
    is_complete: bool = field(init=False)  # stored: read several times a round

    def __post_init__(self) -> None:
        self.is_complete = self.num_tokens == self.sequence.num_uncomputed


class Scheduler(Generic[S]):
    """Keeps a queue in order of arrival and the running sequences, which are admitted from its front.

    limit          bounds rounds after one for which there was no memory
    memory_advice  see `RoundLimit`
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        max_running_requests: int,
        max_batched_tokens: int,
        memory_advice: str = "a smaller KV pool leaves more",
    ) -> None:
        require_count("max_running_requests", max_running_requests, at_least=1)
        require_count("max_batched_tokens", max_batched_tokens, at_least=1)
        self._kv = kv
        self._max_running_requests, self._max_batched_tokens = max_running_requests, max_batched_tokens
        self.waiting: list[S] = []
        self.running: list[S] = []
        self.num_preemptions = 0
        self.limit = RoundLimit(memory_advice)
        self._parts: list[ScheduledSequence[S]] = []  # of the last round, if every running sequence was decoding

    def add_waiting(self, sequence: S) -> None:
        """Adds a sequence at its place in order of arrival: a preempted one comes before newer ones."""
        insort(self.waiting, sequence, key=lambda waiting: waiting.arrival)

    def admit_waiting(self) -> list[S]:
        """Moves waiting sequences to the running ones, oldest first, while they fit; returns those it moved."""
        admitted: list[S] = []
        for sequence in list(self.waiting):  # a copy: admission removes from the queue
            if len(self.running) >= self._max_running_requests:
                break
            match = self._kv.match_prefix(sequence)
            if self._is_prefix_in_progress(sequence, len(match)):
                # continue, not break: a request with another prefix may start meanwhile
                continue
            # The lock comes before the count: without it the matched prefix would itself count as available.
            self._kv.acquire(sequence, match)
            headroom = HEADROOM_SLOTS * (1 + len(self.running))
            if self.running and self._kv.num_available < sequence.num_uncomputed + headroom:
                self._kv.discard(sequence)
                break
            self.waiting.remove(sequence)
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def _is_prefix_in_progress(self, sequence: S, num_cached: int) -> bool:
        """Returns whether a running sequence will insert more of this prefix than is cached now.

        Because siblings wait for it, sixteen that are submitted together compute their prompt once.
        """
        ids = None
        for other in self.running:
            if other.num_uncomputed > 1:
                ids = sequence.token_array(sequence.max_cached) if ids is None else ids
                if common_length(ids, other.token_array()) > num_cached:
                    return True
        return False

    def schedule_round(self) -> list[ScheduledSequence[S]]:
        """Returns this round's parts, all with slots available. *Mutates*: preempts the youngest until they are."""
        scheduled = self._divide_tokens()
        while sum(part.num_tokens for part in scheduled) > self._kv.num_available:
            assert len(self.running) > 1, "a sequence that was accepted does not fit the pool alone"
            # the youngest: the oldest must always advance
            self._preempt_sequence(max(self.running, key=lambda sequence: sequence.arrival))
            scheduled = self._divide_tokens()
        return scheduled

    def _divide_tokens(self) -> list[ScheduledSequence[S]]:
        """Gives one token to each decoding sequence and the rest of the round to prompts, oldest first."""
        others = [s for s in self.running if len(s.tokens) - s.num_computed != 1]
        scheduled = self._parts  # as long as the same sequences decode, and nothing else runs
        if others or [part.sequence for part in scheduled] != self.running:
            scheduled = [ScheduledSequence(s, 1) for s in self.running if s.num_uncomputed == 1]
            self._parts = [] if others else scheduled
        filling = sorted((s for s in others if s.num_uncomputed > 1), key=lambda s: s.arrival)
        # At least a chunk: decoding sequences alone may fill the round for ever.
        room = max(self._max_batched_tokens - len(scheduled), _MIN_CHUNK)
        for sequence in filling:
            if room <= 0:
                break
            scheduled.append(ScheduledSequence(sequence, min(sequence.num_feedable, room)))
            room -= scheduled[-1].num_tokens
        return self.cut_parts(scheduled)

    def cut_parts(self, scheduled: list[ScheduledSequence[S]]) -> list[ScheduledSequence[S]]:
        """Returns as much of these parts as the limit lets into a round, the oldest first; the others wait."""
        if sum(part.num_tokens for part in scheduled) <= self.limit.tokens:
            return scheduled
        room, num_tokens = self.limit.tokens, {}
        for part in sorted(scheduled, key=lambda part: part.sequence.arrival):
            num_tokens[part.sequence.arrival] = min(part.num_tokens, room)
            room -= num_tokens[part.sequence.arrival]
        cut = (ScheduledSequence(part.sequence, num_tokens[part.sequence.arrival]) for part in scheduled)
        return [part for part in cut if part.num_tokens]

    def undo_round(
        self,
        scheduled: list[ScheduledSequence[S]],
        slots: Slots,
        num_drafted: int,
        error: RuntimeError | MemoryError,
    ) -> list[ScheduledSequence[S]]:
        """Frees the slots of a round for which there was no memory; returns the parts of the next attempt. *Mutates*.

        Raises: the error, if it says something else; OutOfMemory where a smaller round is not possible.
        """
        if not is_out_of_memory(error):
            raise error
        self._kv.pool.free(slots)
        self.limit.shrink(len(slots), num_drafted, error)
        return self.cut_parts(scheduled)

    def count_spare_tokens(self, scheduled: Sequence[ScheduledSequence[S]]) -> int:
        """Returns the number of draft tokens that may be added to these parts without a preemption."""
        # may be negative: a prompt's chunk can exceed the round's budget
        num_tokens = sum(part.num_tokens for part in scheduled)
        return max(0, min(self._max_batched_tokens, self._kv.num_available, self.limit.tokens) - num_tokens)

    def _preempt_sequence(self, sequence: S) -> None:
        """Returns a running sequence to the queue. It feeds its tokens again later, unless their KV stays cached."""
        self.running.remove(sequence)
        self._kv.release(sequence)
        self.add_waiting(sequence)
        self.num_preemptions += 1

    def remove_sequence(self, sequence: S) -> None:
        """Removes a finished or cancelled sequence, waiting or running; its KV stays cached."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._kv.release(sequence)
        if not self.running:
            self._parts = []  # an idle engine keeps no sequence

    def abort_running(self) -> list[S]:
        """Removes all running sequences after a failed round and frees the slots it had allocated; returns them."""
        aborted, self.running, self._parts = self.running, [], []
        self._kv.discard_all(aborted)
        return aborted

    def assert_invariants(self) -> None:
        """Asserts the order of the queue and the account of slots."""
        arrivals = [sequence.arrival for sequence in self.waiting]
        assert arrivals == sorted(set(arrivals))
        assert all(sequence.num_computed == 0 and sequence.prefix_node is None for sequence in self.waiting)
        self._kv.assert_invariants(self.running)

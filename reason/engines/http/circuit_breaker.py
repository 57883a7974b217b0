"""Decides when a server that failed is tried again. Pure, apart from the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MAX_DOUBLINGS = 4


class CircuitBreaker:
    """One server's record of failures: closed while it works, open after a failure, closed again by a good reply.

    The pause of an open circuit doubles with every failure in a row, from `cooldown_s` to 16 times that. After it one
    request at a time is the trial, while all others keep away. Where no other server is left, requests go to a server
    with an open circuit as soon as `cooldown_s` has passed since its last failure.

    >>> now = 0.0
    >>> circuit = CircuitBreaker(5.0, lambda: now)
    >>> circuit.record_failure(sent_at=0.0)
    >>> circuit.is_closed, circuit.is_resting, circuit.awaits_trial
    (False, True, False)
    >>> now = 5.0
    >>> circuit.is_resting, circuit.awaits_trial
    (False, True)
    >>> circuit.record_failure(sent_at=5.0)
    >>> now = 10.0
    >>> circuit.is_resting, circuit.awaits_trial, circuit.num_failures  # the second pause is 10 s long
    (False, False, 2)
    >>> circuit.record_reply()
    >>> circuit.is_closed
    True
    """

    def __init__(self, cooldown_s: float, clock: Callable[[], float]) -> None:
        self._cooldown_s, self._clock = cooldown_s, clock
        self._failed_at = float("-inf")
        self._is_on_trial = False
        self.num_failures = 0

    @property
    def is_closed(self) -> bool:
        """Whether its last reply was a good one, or it has had no request yet."""
        return self.num_failures == 0

    @property
    def is_resting(self) -> bool:
        """Whether its last failure is so recent that no request may go there."""
        return not self.is_closed and self._clock() - self._failed_at < self._cooldown_s

    @property
    def awaits_trial(self) -> bool:
        """Whether its pause is over and no request is trying it."""
        pause_s: float = self._cooldown_s * 2 ** min(self.num_failures - 1, _MAX_DOUBLINGS)
        return not self.is_closed and not self._is_on_trial and self._clock() - self._failed_at >= pause_s

    @contextmanager
    def hold_trial(self) -> Iterator[bool]:
        """Yields whether the block is the trial that the circuit awaits. *Mutates* it."""
        holds = self.awaits_trial
        self._is_on_trial = self._is_on_trial or holds
        try:
            yield holds
        finally:
            if holds:
                self._is_on_trial = False

    def record_failure(self, sent_at: float) -> None:
        """Opens the circuit, or lengthens its pause. *Mutates* it.

        A request that was sent before the last failure says nothing new: one fault loses all that are under way.
        """
        if self.is_closed or sent_at >= self._failed_at:
            self.num_failures, self._failed_at = self.num_failures + 1, self._clock()

    def record_reply(self) -> None:
        """Closes the circuit. *Mutates* it."""
        self.num_failures = 0

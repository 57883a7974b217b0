"""Tracks the usage of one search against its budget."""

from __future__ import annotations

import time
from collections.abc import Callable

from decoding.core import NO_USAGE, Usage
from search.strategy import Budget
from search.thinking_time import ThinkingTime


class BudgetTracker:
    """Reserves tokens for requests and adds up their usage; its clock starts when it is made.

    Reserved tokens stay reserved until `commit` replaces them by the real usage, so that requests of several waves may
    run together.

    >>> tracker = BudgetTracker(Budget(tokens=1000))
    >>> tracker.reserve(4, max_tokens=400)          # two at full length fit
    [400, 400]
    >>> tracker.reserve(1, max_tokens=400)          # nothing more while they run
    []
    >>> tracker.commit(400, Usage(tokens=400)), tracker.commit(400, Usage(tokens=300))
    (None, None)
    >>> tracker.reserve(2, max_tokens=400)          # then one, cut to the remaining tokens
    [300]
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock()
        self._counts = dict(vars(Usage()))  # added to in place: a search adds up the usage of every request
        self._reserved_tokens = 0
        self.num_reserved = 0
        """Number of requests that are reserved and not committed."""
        self.thinking_time: ThinkingTime | None = None
        """The time that thoughts may take; None without a time limit."""
        if budget.seconds is not None:
            self.thinking_time = ThinkingTime(budget.seconds, deadline=self._read_deadline, clock=clock)

    @property
    def usage(self) -> Usage:
        """Usage of all committed requests, with the wall clock of this search as `seconds`."""
        return Usage(**{**self._counts, "seconds": self._clock() - self._started})

    @property
    def deadline(self) -> float | None:
        """Instant on the tracker's clock at which the time limit is reached; None without a limit."""
        return None if self._budget.seconds is None else self._started + self._budget.seconds

    @property
    def remaining_tokens(self) -> int | None:
        """Tokens that may still be reserved, also within the limit of forward passes; None without a limit."""
        limits = (
            (self._budget.tokens, self._counts["tokens"]),
            (self._budget.forwards, self._counts["forwards"]),
        )
        remaining = [limit - used for limit, used in limits if limit is not None]
        return min(remaining) - self._reserved_tokens if remaining else None

    @property
    def is_sequential(self) -> bool:
        """Whether the size of a wave of requests depends on the real usage of the wave before it."""
        budget = self._budget
        return any(limit is not None for limit in (budget.tokens, budget.calls, budget.forwards))

    def reserve(self, num_requests: int, *, max_tokens: int, whole: bool = False) -> list[int]:
        """Reserves tokens for the requests that may be sent now; returns the limit of each, or no limits at all.

        As many requests as the remaining tokens afford at full length; if not even one, and no other is reserved, one
        request that is cut to the remaining tokens. So the token budget cannot be exceeded, and the result depends on
        the committed usage alone, not on timing (unless there is a limit in seconds). A token takes at most one forward
        pass, so a limit of forward passes is kept in the same way. `whole`: beside others that are reserved, all of
        these requests or none, since the others may still return tokens. *Mutates*.
        """
        limits = self._affordable_limits(num_requests, max_tokens)
        if whole and self.num_reserved and len(limits) < num_requests:
            return []
        self.num_reserved += len(limits)
        self._reserved_tokens += sum(limits)
        return limits

    def commit(self, reserved: int, usage: Usage) -> None:
        """Replaces a reservation of so many tokens by the real usage of its request. *Mutates*."""
        self.num_reserved -= 1
        self._reserved_tokens -= reserved
        assert self._reserved_tokens >= 0 <= self.num_reserved, "committed more than was reserved"
        self.add_usage(usage)

    def add_usage(self, usage: Usage) -> None:
        """Adds usage without a reservation; `seconds` is ignored, because the tracker has a clock. *Mutates*."""
        if usage is NO_USAGE:  # of most paths: a call for several of them counts once
            return
        for name, count in vars(usage).items():
            if count:  # most are 0
                self._counts[name] += count

    def add_earlier(self, usage: Usage) -> None:
        """Adds the usage of an earlier part of this search; its seconds count, as if the clock had run. *Mutates*."""
        self._started -= usage.seconds
        self.add_usage(usage)

    def _read_deadline(self) -> float:
        assert self.deadline is not None, "there is no time limit"
        return self.deadline

    def _affordable_limits(self, num_requests: int, max_tokens: int) -> list[int]:
        if num_requests < 1 or (self.deadline is not None and self._clock() >= self.deadline):
            return []
        if self._budget.calls is not None:
            num_requests = min(num_requests, self._budget.calls - self._counts["calls"] - self.num_reserved)
        tokens = self.remaining_tokens
        if tokens is None:
            return [max_tokens] * max(0, num_requests)
        if num_requests < 1 or tokens < 1:
            return []
        if tokens < max_tokens:
            # A cut request may run only alone: a reserved one may still return tokens that allow full length.
            return [] if self.num_reserved else [tokens]
        return [max_tokens] * min(num_requests, tokens // max_tokens)

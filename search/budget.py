"""What one search may still spend: the only place a budget is compared with what was used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from decoding.core import Spent
from search.strategy import Budget


class Ledger:
    """Keeps the account of one search; the clock starts when it is made.

    What is granted is set aside until `settle` says what it really was, so that requests of several waves may be under
    way together.

    >>> ledger = Ledger(Budget(tokens=1000))
    >>> ledger.grant(4, max_tokens=400)          # two at full length fit
    [400, 400]
    >>> ledger.grant(1, max_tokens=400)          # nothing more while they are under way
    []
    >>> ledger.settle(400, Spent(tokens=400)), ledger.settle(400, Spent(tokens=300))
    (None, None)
    >>> ledger.grant(2, max_tokens=400)          # then one, cut to what is left
    [300]
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock()
        self._spent = Spent()
        self._granted: list[int] = []

    @property
    def spent(self) -> Spent:
        """Everything charged so far, with the wall clock of this search as `seconds`."""
        return replace(self._spent, seconds=self._clock() - self._started)

    @property
    def deadline(self) -> float | None:
        """The instant, on the ledger's clock, at which the time is up; None without a limit."""
        return None if self._budget.seconds is None else self._started + self._budget.seconds

    @property
    def one_at_a_time(self) -> bool:
        """True where what one wave may use depends on what the wave before it really used."""
        budget = self._budget
        return any(limit is not None for limit in (budget.tokens, budget.calls, budget.forwards))

    def grant(self, wanted: int, *, max_tokens: int) -> list[int]:
        """`max_tokens` for each request that may be sent now; empty when the budget is used up.

        As many requests as the remaining tokens afford at full length; if not even one, and none is under way, a
        single request cut to what is left. Whatever these requests do, the token budget cannot be exceeded, and the
        answer depends on the account alone, not on timing (unless there is a limit in seconds). A token takes at most
        one forward pass, so a limit in passes is kept in the same way. *Mutates*: sets aside what it grants.
        """
        limits = self._affordable(wanted, max_tokens)
        self._granted += limits
        return limits

    @property
    def under_way(self) -> int:
        """Requests granted and not settled."""
        return len(self._granted)

    def _affordable(self, wanted: int, max_tokens: int) -> list[int]:
        if wanted < 1 or (self.deadline is not None and self._clock() >= self.deadline):
            return []
        if self._budget.calls is not None:
            wanted = min(wanted, self._budget.calls - self._spent.calls - len(self._granted))
        limits = (
            (self._budget.tokens, self._spent.tokens),
            (self._budget.forwards, self._spent.forwards),
        )
        lefts = [limit - used for limit, used in limits if limit is not None]
        if not lefts:
            return [max_tokens] * max(0, wanted)
        left = min(lefts) - sum(self._granted)
        if wanted < 1 or left < 1:
            return []
        if left < max_tokens:
            return [] if self._granted else [left]
        return [max_tokens] * min(wanted, left // max_tokens)

    def settle(self, granted: int, spent: Spent) -> None:
        """A request that was granted so many tokens has spent this. *Mutates* the ledger."""
        self._granted.remove(granted)
        self.charge(spent)

    def charge(self, spent: Spent) -> None:
        """Add to the account. *Mutates* the ledger; `seconds` is ignored, the ledger has its own clock."""
        self._spent += spent

"""What the servers have done for us, in the same numbers as an engine of our own where they are known."""

from __future__ import annotations

import time
from dataclasses import dataclass

from decoding.core import Spent
from decoding.stats import EngineStats


@dataclass
class RemoteStats(EngineStats):
    """`EngineStats` as far as a client can know them: rounds and resident KV are the servers' own business and stay 0.

    running    requests with a server now
    waiting    requests that wait for a server to have room, or to live
    full       replies that said the queue was full
    reissued   requests sent again because their server died or hung
    aborted    requests taken back from a server
    """

    full: int = 0
    reissued: int = 0
    aborted: int = 0
    seconds_busy: float = 0.0
    busy_since: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """Time with a request under way."""
        return self.seconds_busy + (time.monotonic() - self.busy_since if self.running + self.waiting else 0.0)

    def came(self) -> None:
        """A request begins to wait. *Mutates*."""
        if not self.running + self.waiting:
            self.busy_since = time.monotonic()
        self.waiting += 1

    def left(self) -> None:
        """A request that was waiting is done. *Mutates*."""
        self.waiting -= 1
        if not self.running + self.waiting:
            self.seconds_busy += time.monotonic() - self.busy_since

    def sent(self, there: bool) -> None:
        """A request went to a server, or came back. *Mutates*."""
        step = 1 if there else -1
        self.running, self.waiting = self.running + step, self.waiting - step

    def charge(self, spent: Spent) -> None:
        """Adds what a generation took. *Mutates*."""
        self.tokens += spent.tokens
        self.drafted += spent.drafted
        self.accepted += spent.accepted
        self.prompt_tokens += spent.prompt_tokens
        self.cached_tokens += spent.cached_tokens

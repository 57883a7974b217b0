"""Counters of a client of servers, in the fields of `EngineStats` as far as a client knows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from decoding.core import Usage
from decoding.stats import EngineStats


@dataclass
class ClientStats(EngineStats):
    """`EngineStats` of requests to servers; rounds and resident KV are known to the servers only and stay 0.

    running    requests at a server now
    waiting    requests that wait for a free slot, or for a server to come back
    full       replies that reported a full queue
    reissued   requests sent again because their response was lost
    aborted    requests taken back from a server
    resumed    of those sent again, requests that went on behind the tokens that had come
    kept_tokens  tokens that were not generated again for that reason
    arriving   tokens of open requests that have come in streams; snapshots count them among `tokens`
    """

    full: int = 0
    reissued: int = 0
    aborted: int = 0
    resumed: int = 0
    kept_tokens: int = 0
    arriving: int = 0
    finished_busy_seconds: float = 0.0
    busy_since: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """Time with at least one open request."""
        open_since = time.monotonic() - self.busy_since if self.running + self.waiting else 0.0
        return self.finished_busy_seconds + open_since

    def take_snapshot(self) -> Self:
        """Returns a copy that later replies do not change; tokens count as they arrive."""
        copy = super().take_snapshot()
        copy.tokens += copy.arriving
        return copy

    @contextmanager
    def track_arrivals(self) -> Iterator[Arrivals]:
        """Counts the tokens of a request as they arrive in the block; `add_usage` counts those of a finished one.

        Those of a request that is taken back, or fails, count as generated. *Mutates*.
        """
        arrivals = Arrivals(self)
        try:
            yield arrivals
        except BaseException:
            self.tokens += arrivals.count
            raise
        finally:
            self.arriving -= arrivals.count

    def record_resumed(self, num_tokens: int) -> None:
        """Notes that a request goes on behind `num_tokens` tokens. *Mutates*."""
        self.resumed, self.kept_tokens = self.resumed + 1, self.kept_tokens + num_tokens

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Counts a request as open for the time of the block. *Mutates*."""
        if not self.running + self.waiting:
            self.busy_since = time.monotonic()
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            if not self.running + self.waiting:
                self.finished_busy_seconds += time.monotonic() - self.busy_since

    @contextmanager
    def track_in_flight(self) -> Iterator[None]:
        """Counts an open request as running, not waiting, for the time of the block. *Mutates*."""
        self.running, self.waiting = self.running + 1, self.waiting - 1
        try:
            yield
        finally:
            self.running, self.waiting = self.running - 1, self.waiting + 1

    def add_usage(self, usage: Usage) -> None:
        """Adds what a generation used. *Mutates*."""
        self.tokens += usage.tokens
        self.drafted += usage.drafted
        self.accepted += usage.accepted
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens


@dataclass
class Arrivals:
    """Tokens of one request that have arrived so far."""

    stats: ClientStats
    count: int = 0

    def add(self, tokens: int) -> None:
        """Counts more of them. *Mutates* the counters, too."""
        self.count += tokens
        self.stats.arriving += tokens

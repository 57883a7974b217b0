"""Ask until there is an answer or there will be none: where to, how often, how long to wait in between."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from reason.engines.sglang_client.errors import Busy, Lost, NoServer, Passing, Unreachable
from reason.engines.sglang_client.session_affinity import S, Worker, Workers
from reason.engines.sglang_client.stats import RemoteStats

R = TypeVar("R")


@dataclass
class Errand:
    """A request under way, of the problem `group`. `dark_since` is when it found no server, `full_since` when one had
    no room, and nothing else has happened to it since; `late` says that nobody waits for it any more."""

    group: str = ""
    late: bool = False
    losses: int = 0
    dark_since: float | None = None
    full_since: float | None = None
    began: float = field(default_factory=time.monotonic)


class Attempts(Generic[S]):
    """Sends errands to workers, again where that may help.

    patience_s   how long an errand waits while no server answers
    losses       servers that an errand may lose before it is held to be the reason
    full_s       how long it waits while servers are full and answer nobody else either; None is for ever
    shortest_s, longest_s   the most that is waited after the first failure, and after many, where a server does not say
    """

    def __init__(
        self,
        workers: Workers[S],
        stats: RemoteStats,
        *,
        patience_s: float,
        losses: int,
        full_s: float | None = None,
        shortest_s: float = 0.1,
        longest_s: float = 2.0,
    ) -> None:
        self._workers, self._stats = workers, stats
        self._patience_s, self._losses, self._full_s = patience_s, losses, full_s
        self._backoff = wait_random_exponential(multiplier=shortest_s, max=longest_s)
        self._answered = float("-inf")

    async def answer(self, errand: Errand, send: Callable[[Worker[S]], Awaitable[R]]) -> R:
        """What `send` makes of a worker that has room. Raises: NoServer, what is no passing fault, or when `late` the
        last fault."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Passing), wait=self._pause, stop=lambda _: errand.late, reraise=True
        )
        found: R = await retrying(self._attempt, errand, send)
        return found

    async def _attempt(self, errand: Errand, send: Callable[[Worker[S]], Awaitable[R]]) -> R:
        worker = None
        try:
            worker = self._workers.pick(errand.group)
            found = await self._at(worker, send)
        except Busy as fault:
            self._stats.full += 1
            errand.dark_since, errand.full_since = None, errand.full_since or time.monotonic()
            assert worker is not None
            self._wait_for_room(worker, errand, fault)
            raise
        except Unreachable as fault:
            errand.dark_since = errand.dark_since or time.monotonic()
            if time.monotonic() - errand.dark_since > self._patience_s:
                raise NoServer(f"{fault}; gave up after {self._patience_s:g} s") from fault
            raise
        except Lost as fault:
            self._stats.reissued += 1
            errand.losses, errand.dark_since, errand.full_since = errand.losses + 1, None, None
            if errand.losses >= self._losses:
                raise NoServer(f"{fault}; {errand.losses} servers were lost over this request") from fault
            raise
        self._answered = time.monotonic()
        return found

    async def _at(self, worker: Worker[S], send: Callable[[Worker[S]], Awaitable[R]]) -> R:
        """The answer of this server, once it has room."""
        worker.in_flight += 1
        try:
            async with worker.room:
                await self._workers.opened(worker)
                if not self._workers.up(worker):  # it failed while this one waited
                    raise Unreachable(f"{worker.server.url} failed")
                return await send(worker)
        finally:
            worker.in_flight -= 1

    def _wait_for_room(self, worker: Worker[S], errand: Errand, fault: Busy) -> None:
        """Holds everything back from a server for as long as it says. Raises: NoServer where that is too long."""
        if fault.after_s is not None:
            if self._full_s is not None and fault.after_s > self._full_s:
                raise NoServer(
                    f"{fault}; it says to wait {fault.after_s:g} s, longer than {self._full_s:g} s"
                ) from fault
            self._workers.full(worker, fault.after_s)
        assert errand.full_since is not None
        if self._full_s is not None and time.monotonic() - max(errand.full_since, self._answered) > self._full_s:
            raise NoServer(f"{fault}; nothing got through for {self._full_s:g} s") from fault

    def _pause(self, state: RetryCallState) -> float:
        """No time after a loss where another server may be asked at once, nor where the server itself said how long:
        that is waited for in front of it."""
        fault = state.outcome.exception() if state.outcome is not None else None
        if isinstance(fault, Lost) and len(self._workers.all) > 1:
            return 0.0
        if isinstance(fault, Busy) and fault.after_s is not None:
            return 0.0
        return self._backoff(state)

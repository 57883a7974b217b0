"""Chooses the server of a request: the server of its problem, or the least busy one while that server is down."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from reason.engines.http.client import JsonHttpClient
from reason.engines.http.errors import ServerUnreachable

ServerT = TypeVar("ServerT", bound=JsonHttpClient)
_MAX_PROBLEMS = 4096  # problems whose server is remembered; older ones are finished


@dataclass(eq=False)
class PooledServer(Generic[ServerT]):
    """A server and its load, as this client knows them.

    slots             permits for further requests; limits those that the server has at once
    num_assigned      requests at the server or waiting for one of its slots
    down_until        end of the pause after a failure, by the pool's clock
    overloaded_until  end of the pause that the server asked for, by the pool's clock
    """

    server: ServerT
    slots: asyncio.Semaphore
    num_assigned: int = 0
    down_until: float = float("-inf")
    overloaded_until: float = float("-inf")


class ServerPool(Generic[ServerT]):
    """Assigns each problem to the least busy server and keeps it there, because its prefixes are cached there.

    max_in_flight  requests that one server has at once; more wait here (thousands of connections would time out there)
    cooldown_s     pause after a failure of a server; meanwhile its problems are assigned to another one
    """

    def __init__(
        self,
        servers: Sequence[ServerT],
        *,
        max_in_flight: int = 256,
        cooldown_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = [PooledServer(server, asyncio.Semaphore(max_in_flight)) for server in servers]
        self._cooldown_s, self._clock = cooldown_s, clock
        self._by_problem: OrderedDict[str, PooledServer[ServerT]] = OrderedDict()  # least recently used first

    def choose_server(self, problem: str) -> PooledServer[ServerT]:
        """Returns the server for a request of `problem`; "" belongs to no problem. *Mutates* the assignment.

        Raises: ServerUnreachable while every server is down.
        """
        assigned = self._by_problem.get(problem)
        if assigned is not None and self.is_available(assigned):
            self._by_problem.move_to_end(problem)
            return assigned
        available = [pooled for pooled in self.servers if self.is_available(pooled)]
        if not available:
            urls = ", ".join(pooled.server.url for pooled in self.servers)
            raise ServerUnreachable(f"no server answers: {urls}")
        chosen = min(available, key=lambda pooled: pooled.num_assigned)
        if problem:
            self._by_problem[problem] = chosen
            if len(self._by_problem) > _MAX_PROBLEMS:
                self._by_problem.popitem(last=False)
        return chosen

    def is_available(self, pooled: PooledServer[ServerT]) -> bool:
        """Returns whether the pause after the server's last failure is over."""
        return pooled.down_until <= self._clock()

    def mark_failed(self, pooled: PooledServer[ServerT]) -> None:
        """Excludes a server for `cooldown_s`. *Mutates* it."""
        pooled.down_until = self._clock() + self._cooldown_s

    def mark_overloaded(self, pooled: PooledServer[ServerT], pause_s: float) -> None:
        """Holds back what has not been sent to a server for `pause_s`. *Mutates* it."""
        pooled.overloaded_until = max(pooled.overloaded_until, self._clock() + pause_s)

    async def wait_until_accepting(self, pooled: PooledServer[ServerT]) -> None:
        """Waits for the end of the pause that a server asked for."""
        # A random extra of up to 1 s, so that not all waiting requests arrive in the same instant. In a loop: another
        # request may have been rejected meanwhile, which extends the pause.
        while (left := pooled.overloaded_until - self._clock()) > 0:
            await asyncio.sleep(left + random.uniform(0, min(1.0, left)))

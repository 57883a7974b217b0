"""Chooses the server of a request: the server of its problem, or the least busy one while that server does not work."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from reason.engines.http.circuit_breaker import CircuitBreaker
from reason.engines.http.client import JsonHttpClient
from reason.engines.http.errors import ServerUnreachable

ServerT = TypeVar("ServerT", bound=JsonHttpClient)
_MAX_PROBLEMS = 4096  # problems whose server is remembered; older ones are finished
_LONG_PAUSE_S = 1.0  # a shorter pause is waited for where the prefixes are cached
_REFUSALS = 2  # in a row, after which a server counts as full


@dataclass(eq=False)
class PooledServer(Generic[ServerT]):
    """A server and its load, as this client knows them; instants are those of the pool's clock.

    slots             permits for further requests; limits those that the server has at once
    circuit           whether it works
    num_assigned      requests at the server or waiting for one of its slots
    num_refusals      requests in a row that found it full
    refused_at        the last of them
    overloaded_until  end of the pause that the server asked for
    """

    server: ServerT
    slots: asyncio.Semaphore
    circuit: CircuitBreaker
    num_assigned: int = 0
    num_refusals: int = 0
    refused_at: float = float("-inf")
    overloaded_until: float = float("-inf")


class ServerPool(Generic[ServerT]):
    """Assigns each problem to the least busy server and keeps it there, because its prefixes are cached there.

    A server that fails, or stays full, hands its problems to others as long as those work.

    max_in_flight  requests that one server has at once; more wait here (thousands of connections would time out there)
    cooldown_s     pause after a failure of a server (`CircuitBreaker`)
    """

    def __init__(
        self,
        servers: Sequence[ServerT],
        *,
        max_in_flight: int = 256,
        cooldown_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = [
            PooledServer(server, asyncio.Semaphore(max_in_flight), CircuitBreaker(cooldown_s, clock))
            for server in servers
        ]
        self._cooldown_s, self._clock = cooldown_s, clock
        self._by_problem: OrderedDict[str, PooledServer[ServerT]] = OrderedDict()  # least recently used first

    def choose_server(self, problem: str, avoided: Collection[object] = ()) -> PooledServer[ServerT]:
        """Returns the server for a request of `problem`; "" belongs to no problem. *Mutates* the assignment.

        avoided  servers that the request has met and that are chosen only where no other one works

        Raises: ServerUnreachable while every server rests after a failure.
        """
        usable = [pooled for pooled in self.servers if not pooled.circuit.is_resting]
        if not usable:
            urls = ", ".join(pooled.server.url for pooled in self.servers)
            raise ServerUnreachable(f"no server answers: {urls}")
        assigned = self._by_problem.get(problem)
        chosen = min(
            usable, key=lambda pooled: (*self._rank(pooled, avoided), pooled is not assigned, pooled.num_assigned)
        )
        # A trial is one request only; its problem stays where it is.
        if problem and (assigned is None or not chosen.circuit.awaits_trial):
            self._by_problem[problem] = chosen
            self._by_problem.move_to_end(problem)
            if len(self._by_problem) > _MAX_PROBLEMS:
                self._by_problem.popitem(last=False)
        return chosen

    @contextmanager
    def track_assigned(self, pooled: PooledServer[ServerT]) -> Iterator[bool]:
        """Counts a request as assigned to a server in the block; yields whether it is the trial of that server."""
        # Counted before a slot is free: `choose_server` compares servers by what waits for them, too.
        pooled.num_assigned += 1
        try:
            with pooled.circuit.hold_trial() as is_trial:
                yield is_trial
        finally:
            pooled.num_assigned -= 1

    def is_worse_than_another(self, pooled: PooledServer[ServerT], avoided: Collection[object]) -> bool:
        """Returns whether a request that has not been sent yet should go to another server."""
        if pooled.circuit.is_resting:
            return True
        others = [other for other in self.servers if other is not pooled and not other.circuit.is_resting]
        return any(self._rank(other, avoided) < self._rank(pooled, avoided) for other in others)

    def has_fresh_server(self, avoided: Collection[object]) -> bool:
        """Returns whether a server outside `avoided` works."""
        return any(pooled.circuit.is_closed and pooled not in avoided for pooled in self.servers)

    def record_failure(self, pooled: PooledServer[ServerT], sent_at: float) -> None:
        """Opens the circuit of a server that failed on a request. *Mutates* it."""
        pooled.circuit.record_failure(sent_at)

    def record_refusal(self, pooled: PooledServer[ServerT], pause_s: float) -> None:
        """Notes that a server is full, and holds back what has not been sent to it for `pause_s`. *Mutates* it."""
        pooled.num_refusals, pooled.refused_at = pooled.num_refusals + 1, self._clock()
        pooled.overloaded_until = max(pooled.overloaded_until, self._clock() + pause_s)

    def record_reply(self, pooled: PooledServer[ServerT]) -> None:
        """Notes a good reply. *Mutates* the server."""
        pooled.num_refusals = 0
        pooled.circuit.record_reply()

    def pause_left_s(self, pooled: PooledServer[ServerT]) -> float:
        """Returns how long a server still wants to be left alone."""
        return max(0.0, pooled.overloaded_until - self._clock())

    def _rank(self, pooled: PooledServer[ServerT], avoided: Collection[object]) -> tuple[int, int]:
        """Returns the place of a server in the order of choice, the first one smallest."""
        is_avoided, circuit = pooled in avoided, pooled.circuit
        if circuit.is_closed:
            return 1 + self._is_full(pooled) + 2 * is_avoided, 0
        if circuit.awaits_trial and not is_avoided and not pooled.slots.locked() and not self._is_full(pooled):
            return 0, 0
        return 5 + is_avoided, circuit.num_failures

    def _is_full(self, pooled: PooledServer[ServerT]) -> bool:
        if self.pause_left_s(pooled) > _LONG_PAUSE_S:
            return True
        return pooled.num_refusals >= _REFUSALS and self._clock() - pooled.refused_at < self._cooldown_s

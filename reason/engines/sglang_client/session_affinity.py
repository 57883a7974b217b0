"""Which server a request goes to: the one its problem is at home with, unless that one is down."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from reason.engines.sglang_client.errors import Unreachable
from reason.engines.sglang_client.http_client import Asker

S = TypeVar("S", bound=Asker)
_HOMES = 4096  # problems whose home is remembered; older ones are done


@dataclass(eq=False)
class Worker(Generic[S]):
    """A server as its client sees it: requests with it or bound for it, how many more it may have at once, until when
    it is left alone because it failed, and until when it wants nothing because it is full."""

    server: S
    room: asyncio.Semaphore
    in_flight: int = 0
    down_until: float = float("-inf")
    full_until: float = float("-inf")


class Workers(Generic[S]):
    """A problem moves in with the least busy server and stays, because there its prefixes are cached.

    most     requests that one server has at once; the others wait here (thousands of connections would time out there)
    rest_s   a server that failed is left alone for so long; its problems find a new home
    """

    def __init__(
        self,
        servers: Sequence[S],
        *,
        most: int = 256,
        rest_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = [Worker(server, asyncio.Semaphore(most)) for server in servers]
        self._rest_s, self._clock = rest_s, clock
        self._homes: OrderedDict[str, Worker[S]] = OrderedDict()

    def pick(self, group: str) -> Worker[S]:
        """Where to send a request of this problem; "" is at home nowhere. *Mutates* the homes.

        Raises: Unreachable while every server is down.
        """
        home = self._homes.get(group)
        if home is not None and self.up(home):
            self._homes.move_to_end(group)
            return home
        up = [worker for worker in self.all if self.up(worker)]
        if not up:
            raise Unreachable(f"no server answers: {', '.join(worker.server.url for worker in self.all)}")
        found = min(up, key=lambda worker: worker.in_flight)
        if group:
            self._homes[group] = found
            if len(self._homes) > _HOMES:
                self._homes.popitem(last=False)
        return found

    def up(self, worker: Worker[S]) -> bool:
        """Whether it may be asked now."""
        return worker.down_until <= self._clock()

    def failed(self, worker: Worker[S]) -> None:
        """Leaves a server alone for a while. *Mutates* it."""
        worker.down_until = self._clock() + self._rest_s

    def full(self, worker: Worker[S], after_s: float) -> None:
        """Keeps what has not been sent from a server for so long. *Mutates* it."""
        worker.full_until = max(worker.full_until, self._clock() + after_s)

    async def opened(self, worker: Worker[S]) -> None:
        """Waits until the server wants requests again, and a little longer: not all of them in the same instant."""
        while (left := worker.full_until - self._clock()) > 0:
            await asyncio.sleep(left + random.uniform(0, min(1.0, left)))

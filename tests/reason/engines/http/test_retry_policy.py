"""Beside a server that works no request fails, and alone a sick server's requests end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from reason.engines.http.bounded_http import BoundedHttp
from reason.engines.http.client import JsonHttpClient
from reason.engines.http.errors import NoServer, Overloaded, RequestRejected, ResponseLost, ServerUnreachable
from reason.engines.http.in_flight import InFlightRequest
from reason.engines.http.reply import ReplyLimits
from reason.engines.http.retry_policy import RetryPolicy
from reason.engines.http.server_pool import PooledServer, ServerPool
from reason.engines.http.stats import ClientStats
from reason.engines.sglang_client.settings import SGLangSettings

HTTP = BoundedHttp(ReplyLimits(total_s=1, idle_s=1, max_bytes=1))
QUICK: dict[str, Any] = {"unavailable_timeout_s": 0.5, "min_backoff_s": 0.05, "max_backoff_s": 0.2, "cooldown_s": 0.1}
Server = Callable[[], Awaitable[str]]


async def answer() -> str:
    return "reply"


def failing(error: Exception) -> Server:
    async def fail() -> str:
        raise error

    return fail


class Servers:
    """Servers that are functions; `num_sent` counts the requests of each."""

    def __init__(self, *servers: Server, **settings: Any) -> None:
        self._servers, self.num_sent = servers, [0] * len(servers)
        urls = [f"http://{i}" for i in range(len(servers))]
        made = SGLangSettings(urls=urls, **(QUICK | settings))
        self.pool = ServerPool(
            [JsonHttpClient(url, HTTP) for url in urls], max_in_flight=made.max_in_flight, cooldown_s=made.cooldown_s
        )
        self.stats = ClientStats()
        self._policy = RetryPolicy(self.pool, self.stats, made)

    async def send(self, problem: str = "p") -> str:
        with self.stats.track_request():
            return await self._policy.send_with_retries(InFlightRequest(problem), self._answer)

    def send_many(self, count: int, problems: int = 4) -> list[str]:
        async def work() -> list[str]:
            return await asyncio.gather(*(self.send(str(i % problems)) for i in range(count)))

        return asyncio.run(asyncio.wait_for(work(), 60))

    async def _answer(self, pooled: PooledServer[JsonHttpClient]) -> str:
        index = int(pooled.server.url.removeprefix("http://"))
        self.num_sent[index] += 1
        await asyncio.sleep(0.001)
        return await self._servers[index]()


SICK = [
    ResponseLost("nonsense"),
    ServerUnreachable("refused"),
    Overloaded("full"),
    Overloaded("full", 0.0),
    Overloaded("full", 1e-9),
    Overloaded("full", 7200.0),
    RequestRejected("400: no such model"),
]


@pytest.mark.parametrize(
    "error", SICK, ids=lambda error: f"{type(error).__name__} {getattr(error, 'retry_after_s', '')}"
)
def test_no_request_fails_beside_a_server_that_works(error: Exception) -> None:
    servers = Servers(failing(error), answer, max_retries=2)
    assert servers.send_many(40) == ["reply"] * 40
    assert 0 < servers.num_sent[0] <= 80
    assert servers.send_many(40) == ["reply"] * 40
    assert servers.stats.running == servers.stats.waiting == 0


def test_full_server_alone_ends_and_is_not_hammered() -> None:
    for retry_after_s in (None, 0.0, 1e-9):
        servers = Servers(failing(Overloaded("full", retry_after_s)), unavailable_timeout_s=1.0)
        with pytest.raises(NoServer, match=r"full; nothing got through for 1 s"):
            asyncio.run(servers.send())
        assert servers.num_sent[0] < 60


def test_requests_that_wait_for_a_full_server_end_too() -> None:
    """Those that never reached it: the pause is extended again and again before they may send."""
    servers = Servers(failing(Overloaded("full", 1.5)), unavailable_timeout_s=2.0, max_in_flight=1)
    with pytest.raises(NoServer):
        servers.send_many(8)


def test_request_leaves_the_queue_of_a_server_that_asks_for_a_long_pause() -> None:
    is_free = asyncio.Event()
    refusals = [Overloaded("full", 60.0)]

    async def refuse() -> str:
        if refusals:
            raise refusals.pop()
        return "late reply"

    async def wait() -> str:
        await is_free.wait()
        return "reply"

    async def work() -> list[str]:
        first = asyncio.create_task(servers.send("q"))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(servers.send("p")) for _ in range(4)]
        await asyncio.sleep(0.1)
        is_free.set()
        return await asyncio.gather(first, *others)

    servers = Servers(wait, refuse, unavailable_timeout_s=120, max_in_flight=1)
    began = time.monotonic()
    assert asyncio.run(asyncio.wait_for(work(), 50)) == ["reply"] * 5
    assert time.monotonic() - began < 40


def test_rejection_by_two_servers_is_the_requests_fault() -> None:
    servers = Servers(*[failing(RequestRejected("top_p must be below 1"))] * 3)
    with pytest.raises(RequestRejected, match="top_p"):
        asyncio.run(servers.send())
    assert sorted(servers.num_sent) == [0, 1, 1]
    assert all(pooled.circuit.is_closed for pooled in servers.pool.servers)


def test_server_that_rejects_what_another_answers_is_marked() -> None:
    servers = Servers(failing(RequestRejected("no such model")), answer)
    assert asyncio.run(servers.send()) == "reply"
    assert [pooled.circuit.is_closed for pooled in servers.pool.servers] == [False, True]


def test_request_that_every_server_loses_ends() -> None:
    lost = failing(ResponseLost("crash"))
    for servers, num_sent in ((Servers(lost), 3), (Servers(lost, lost), 3), (Servers(*[lost] * 5), 3)):
        with pytest.raises(NoServer, match="crash; 3 replies to this request were lost"):
            asyncio.run(servers.send())
        assert sum(servers.num_sent) == num_sent


def test_loss_beside_a_dead_server_ends() -> None:
    servers = Servers(failing(ResponseLost("crash")), failing(ServerUnreachable("refused")), unavailable_timeout_s=30)
    with pytest.raises(NoServer):
        asyncio.run(servers.send())


def test_request_that_a_server_has_accepted_keeps_the_others_waiting() -> None:
    """A full queue behind a long generation of this client is no failure, however long that takes."""
    turns = iter(range(99))

    async def accept_the_first() -> str:
        if next(turns) == 0:
            await asyncio.sleep(3.5)
        elif not long_ones[0].done():
            raise Overloaded("full")
        return "reply"

    async def work() -> list[str]:
        long_ones.append(asyncio.create_task(servers.send()))
        await asyncio.sleep(2.1)
        return await asyncio.gather(*long_ones, servers.send())

    long_ones: list[asyncio.Task[str]] = []
    servers = Servers(accept_the_first, unavailable_timeout_s=0.3)
    assert asyncio.run(asyncio.wait_for(work(), 60)) == ["reply"] * 2

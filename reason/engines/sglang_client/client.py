"""Several SGLang servers as one that can be asked."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from reason.engines.sglang_client.calls import Calls
from reason.engines.sglang_client.dispatcher import Errand, Post
from reason.engines.sglang_client.server import Server
from reason.engines.sglang_client.session_affinity import Workers
from reason.engines.sglang_client.stats import RemoteStats

T = TypeVar("T")


class Client:
    """May be called from any thread and from several event loops. The settings are those of `Servers`.

    rest_s   a server that failed is left alone for so long
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        request_timeout_s: float = 600.0,
        patience_s: float = 120.0,
        losses: int = 3,
        most: int = 256,
        rest_s: float = 5.0,
    ) -> None:
        self.urls = tuple(urls)
        self.stats = RemoteStats()
        self._calls = Calls(request_timeout_s)
        self._servers = [Server(url, self._calls.http) for url in self.urls]
        workers = Workers(self._servers, most=most, rest_s=rest_s)
        self._post = Post(workers, self.stats, patience_s=patience_s, losses=losses)

    def meet(self, introduction: Callable[[Server], Coroutine[Any, Any, T]]) -> list[T]:
        """What comes of introducing oneself to each server. Raises: its error, after closing."""
        return self._calls.introduce([introduction(server) for server in self._servers])

    async def together(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The results, in order, of work that calls `reply`. Cancelling takes all of it back from the servers.

        Raises: the first error, after cancelling the rest; RuntimeError once closed.
        """
        return await self._calls.together(work)

    async def reply(self, errand: Errand[T]) -> T | None:
        """See `Post.reply`. Raises: Refused, OversizedRequest, NoServer."""
        return await self._post.reply(errand)

    def close(self) -> None:
        """Takes back what is with the servers and ends the thread. Calling it twice is harmless."""
        self._calls.close(self._post.settle)

"""A server that answers healthily until it is set to one of the behaviours of a hostile one."""

from __future__ import annotations

import asyncio
from typing import Self

from tests.support.hostile_behaviours import BEHAVIOURS
from tests.support.hostile_exchange import Behaviour, Exchange, answer_healthily
from tests.support.hostile_replies import Dialect
from tests.support.scripted_http import ScriptedHttp

HEALTHY = Behaviour("healthy", answer_healthily)


class HostileServer(ScriptedHttp):
    """A TCP server in its own thread; it breaks HTTP where its behaviour says so.

    >>> with HostileServer("openai") as server:
    ...     server.behaviour = "body_drips"

    num_connections  connections accepted
    num_dropped      connections that the client closed before the behaviour was at its end
    num_open         connections that are open now
    paths            paths of all requests that were read

    Raises: KeyError for an unknown behaviour.
    """

    def __init__(self, dialect: Dialect, behaviour: str = "healthy", *, port: int = 0) -> None:
        self._dialect = dialect
        self._behaviour = _find_behaviour(behaviour)
        self._acted = 0
        self._open: set[asyncio.Task[None]] = set()
        self.num_connections = self.num_dropped = 0
        self.paths: list[str] = []
        super().__init__(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address for the setting `urls`."""
        return f"http://127.0.0.1:{self.port}" + ("" if self._dialect == "sglang" else "/v1")

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def behaviour(self) -> str:
        """The name of what it does now. Setting it breaks all connections; callable from any thread."""
        return self._behaviour.name

    @behaviour.setter
    def behaviour(self, name: str) -> None:
        behaviour = _find_behaviour(name)

        async def switch() -> None:
            self._behaviour, self._acted = behaviour, 0
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

        self._loop.run(switch())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        exchange = Exchange(self._dialect, self._acted, reader, writer, self.paths)
        self.num_connections += 1
        self._acted += 1
        try:
            await self._behaviour.act(exchange)
        except asyncio.IncompleteReadError:  # the client has no further request
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        except ConnectionError:
            self.num_dropped += 1
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()


def _find_behaviour(name: str) -> Behaviour:
    return HEALTHY if name == HEALTHY.name else BEHAVIOURS[name]

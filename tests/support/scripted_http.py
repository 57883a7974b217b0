"""A web server in a thread of its own, for tests in which servers misbehave: subclasses say what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reason.engines.event_loop import LoopThread


@dataclass(frozen=True)
class Request:
    """What was asked. `rest` is what the client sends after it: nothing, then the end of the stream when it leaves."""

    path: str
    fields: Mapping[str, str]
    body: Any
    rest: asyncio.StreamReader


class ScriptedHttp:
    """Listens at `port` of this machine, a free one for 0."""

    def __init__(self, port: int = 0) -> None:
        self._loop = LoopThread()
        self._server = self._loop.run(asyncio.start_server(self._serve, "127.0.0.1", port))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Dies: nobody is answered any more, connections break."""

        async def shut() -> None:  # on its own loop: connections may be ending there
            self._server.close()

        self._loop.run(shut())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
                size = int(fields.get("content-length", 0))
                body = json.loads(await reader.readexactly(size)) if size else None
                if not await self._respond(Request(lines[0].split()[1], fields, body, reader), writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answers; False where the connection is to be closed."""
        raise NotImplementedError

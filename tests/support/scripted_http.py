"""A web server in its own thread, for tests in which servers misbehave; subclasses define the replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reason.engines.event_loop import EventLoopThread


@dataclass(frozen=True)
class ScriptedRequest:
    """A received request. `rest` is the stream after it: nothing, then its end when the client disconnects."""

    path: str
    fields: Mapping[str, str]
    body: Any
    rest: asyncio.StreamReader


class ScriptedHttp:
    """Listens at `port` of this machine, a free one for 0."""

    def __init__(self, port: int = 0) -> None:
        self._loop = EventLoopThread()
        self._server = self._loop.run(asyncio.start_server(self._serve, "127.0.0.1", port))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stops answering and breaks all connections, like a server that dies."""

        async def shut() -> None:  # on the server's loop: connections may be ending there
            self._server.close()

        self._loop.run(shut())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._respond(await read_request(reader), writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _respond(self, request: ScriptedRequest, writer: asyncio.StreamWriter) -> bool:
        """Writes the reply; returns False where the connection is to be closed."""
        raise NotImplementedError


async def read_request(reader: asyncio.StreamReader) -> ScriptedRequest:
    """Reads the next request of a connection. Raises: IncompleteReadError where the client has closed it."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    size = int(fields.get("content-length", 0))
    body = json.loads(await reader.readexactly(size)) if size else None
    return ScriptedRequest(lines[0].split()[1], fields, body, reader)


async def send_json(
    writer: asyncio.StreamWriter,
    status: int,
    body: Any,
    headers: Mapping[str, str] | None = None,
    *,
    cut: bool = False,
) -> bool:
    """Writes a reply of JSON, or of plain text where `body` is a string; only half of it if `cut`.

    Returns whether the connection stays open.
    """
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    kind = {} if isinstance(body, str) else {"Content-Type": "application/json"}
    more = "".join(f"{name}: {value}\r\n" for name, value in {**kind, **(headers or {})}.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(content)}\r\n\r\n".encode())
    writer.write(content[: len(content) // 2] if cut else content)
    await writer.drain()
    return not cut

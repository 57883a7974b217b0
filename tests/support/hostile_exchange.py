"""One connection to a hostile server, the rows of the table of behaviours, and what most of these rows are made of."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tests.support.hostile_replies import Dialect, build_reply, encode_events
from tests.support.scripted_http import ScriptedRequest, read_request

Outcome = Literal["answered", "fault", "rejected"]
"""Of a request where no other server is there: a sane generation; NoServer; RequestRejected or OversizedRequest."""

ANSWERED = frozenset[Outcome]({"answered"})
FAULT = frozenset[Outcome]({"fault"})
REJECTED = frozenset[Outcome]({"rejected"})
FAILED = FAULT | REJECTED
ANY = ANSWERED | FAILED

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
OPENAI: tuple[Dialect, ...] = ("openai", "openai-stream")
SGLANG: tuple[Dialect, ...] = ("sglang",)

DRIP_S = 0.1  # shorter than a sensible idle limit: only a total limit ends such a reply
SLOW_DRIP_S = 1.0


class ClientClosed(ConnectionError):
    """The client closed the connection before the behaviour was at its end."""


@dataclass
class Exchange:
    """A connection that a behaviour handles.

    number    connections that this behaviour has had before
    paths     the server's list of the paths of all requests, which each request is added to
    requests  the requests read so far
    """

    dialect: Dialect
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    paths: list[str]
    requests: list[ScriptedRequest] = field(default_factory=list)

    async def read_request(self) -> ScriptedRequest:
        """Raises: IncompleteReadError where the client has closed the connection."""
        self.requests.append(await read_request(self.reader))
        self.paths.append(self.requests[-1].path)
        return self.requests[-1]

    def build_reply(self) -> Any:
        """Returns the JSON of a healthy reply to the last request."""
        return build_reply(self.dialect, self.requests[-1])

    async def send(self, data: bytes) -> None:
        """Raises: ConnectionError where the client has closed the connection."""
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0)  # `drain` itself does not yield, and an endless stream must not block the thread

    async def send_reply(self, reply: Any) -> None:
        """Sends a reply with all that belongs to it, streamed where the last request asks for a stream."""
        if self.is_streamed:
            await self.send(build_message(encode_events(reply), fields="Content-Type: text/event-stream\r\n"))
        else:
            await self.send(build_message(json.dumps(reply).encode()))

    async def wait(self, seconds: float) -> None:
        """Raises: ClientClosed where the client closes the connection in that time."""
        try:
            received = await asyncio.wait_for(self.reader.read(1 << 16), seconds)
        except TimeoutError:
            return
        if not received:
            raise ClientClosed

    async def linger(self) -> None:
        """Holds the connection open until the client closes it. Raises: ClientClosed."""
        while True:
            await self.wait(3600)

    async def drip(self, pieces: Iterable[bytes], pause_s: float = DRIP_S) -> None:
        """Sends piece by piece with pauses, then holds the connection open. Raises: ClientClosed."""
        for piece in pieces:
            await self.send(piece)
            await self.wait(pause_s)
        await self.linger()

    def reset(self) -> None:
        """Breaks the connection with a TCP reset instead of an orderly end."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    @property
    def is_streamed(self) -> bool:
        """Whether the last request asks for a stream."""
        return isinstance(self.requests[-1].body, dict) and bool(self.requests[-1].body.get("stream"))

    @property
    def is_generation(self) -> bool:
        """Whether the last request asks for text, a probe's one token included."""
        return self.requests[-1].path.endswith(("/completions", "/generate"))


Act = Callable[[Exchange], Awaitable[None]]
"""Handles one connection; it is closed after the end. May raise ConnectionError and IncompleteReadError."""


@dataclass(frozen=True)
class Behaviour:
    """A way to answer.

    alone        what may become of a request where this is the only server
    dialects     those for which the behaviour exists
    alters_text  whether a generation may have another text than `REPLY_TEXT`
    """

    name: str
    act: Act
    alone: frozenset[Outcome] = FAULT
    dialects: tuple[Dialect, ...] = DIALECTS
    alters_text: bool = False


def build_message(body: bytes, status: str = "200 OK", fields: str = "", *, length: int | str | None = None) -> bytes:
    """Returns a complete reply, after which the connection is to be closed. `length` replaces the length of `body`."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\n{fields}Content-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + body


def sends(data: bytes, *, lingers: bool = False) -> Act:
    """Returns the act that answers a request with these bytes, and then closes the connection or does not."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        await exchange.send(data)
        if lingers:
            await exchange.linger()

    return act


def answers(body: bytes | str, status: str = "200 OK", fields: str = "") -> Act:
    """Returns the act that answers every request with this complete reply."""
    return sends(build_message(body.encode() if isinstance(body, str) else body, status, fields))


def answers_json(content: bytes | str) -> Act:
    """Returns the act that answers with this text as the JSON of a reply, or as the first event of a stream."""
    data = content.encode() if isinstance(content, str) else content

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        await exchange.send(build_message(b"data: " + data + b"\n\n" if exchange.is_streamed else data))

    return act


def distorts(change: Callable[[Any], Any]) -> Act:
    """Returns the act that answers with `change` of the healthy reply, and requests that ask for no text healthily."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        reply = exchange.build_reply()
        await exchange.send_reply(change(reply) if exchange.is_generation else reply)

    return act


async def answer_healthily(exchange: Exchange) -> None:
    """Answers as a healthy server does, and leaves the connection open for further requests."""
    while True:
        await exchange.read_request()
        if exchange.is_streamed:
            await exchange.send_reply(exchange.build_reply())
            return
        body = json.dumps(exchange.build_reply()).encode()
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

"""A web server that writes the bytes that a test gives it, one piece after another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.support.scripted_http import ScriptedHttp, ScriptedRequest

Pieces = Iterable[bytes | float]
"""Bytes to write, and seconds to wait between them."""

HEAD = b"HTTP/1.1 200 X\r\n"
STREAM_HEAD = HEAD + b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class RawServer(ScriptedHttp):
    """Answers every request with the same pieces, then closes the connection. `num_requests` counts them."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self.num_requests = list(pieces), 0
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _respond(self, request: ScriptedRequest, writer: asyncio.StreamWriter) -> bool:
        self.num_requests += 1
        for piece in self._pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            else:
                await asyncio.sleep(piece)
        return False


def with_length(body: bytes, *headers: bytes) -> list[bytes | float]:
    """Returns the pieces of a whole reply."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return [HEAD + lines + b"Content-Length: %d\r\n\r\n" % len(body), body]


def drip(body: bytes, pause_s: float = 0.05) -> list[bytes | float]:
    """Returns the pieces of a reply that sends a byte now and then."""
    begin = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    pieces: list[bytes | float] = [begin]
    for byte in body:
        pieces += [bytes([byte]), pause_s]
    return pieces

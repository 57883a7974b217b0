"""A client that writes what it likes to a socket: half requests, closed write sides, resets, nothing at all."""

from __future__ import annotations

import json
import socket
import struct
import time
from types import TracebackType
from typing import Any, Self

import httpx

CHAT = "/v1/chat/completions"


class RawClient:
    """One connection to a server; `read_all` gives up after a minute."""

    def __init__(self, url: httpx.URL, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:  # before the connection: TCP agrees on its window then
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect((url.host, url.port))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_until_closed(self, data: bytes, *, pause_s: float) -> None:
        """Sends `data` again and again; asserts that the server closes the connection within a minute."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                self.send(data)
            except ConnectionError:
                return
            time.sleep(pause_s)
        raise AssertionError("the server did not close the connection within a minute")

    def close_write_side(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Closes the connection as a crashed client does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def read_all(self) -> bytes:
        """Returns what the server sends until it closes the connection; also after a reset."""
        data = b""
        try:
            while received := self.socket.recv(65536):
                data += received
        except ConnectionError:
            pass
        return data

    def read_until(self, end: bytes) -> bytes:
        """Returns what the server sends, up to where `end` has arrived."""
        data = b""
        while end not in data:
            received = self.socket.recv(65536)
            assert received, f"the server closed the connection after {data!r}"
            data += received
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()


def request_bytes(method: str, path: str, body: bytes = b"", /, **headers: str) -> bytes:
    """A request of HTTP/1.1. `Content_Length="3"` among `headers` replaces the true one; "" leaves it out."""
    lines = {"Host": "toy", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def post_bytes(body: dict[str, Any], **headers: str) -> bytes:
    """A chat request."""
    return request_bytes("POST", CHAT, json.dumps(body).encode(), **headers)


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def error_code(reply: bytes) -> str:
    """The code of an error, whose reply must be complete and in the format of the API."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head
    code = json.loads(body)["error"]["code"]
    assert isinstance(code, str)
    return code

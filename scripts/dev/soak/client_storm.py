"""Clients of a server: proper ones, and ones that leave, crawl, close half, talk nonsense, or have no key."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx

KEY = "soak-key"
CHAT = "/v1/chat/completions"
INVALID_BODIES = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"model": 3}',
    b'{"messages": [], "n": -1}',
    b'{"model": "best-of-4", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "best-of-4", "messages": [{"role": "user", "content": "x"}], "search": {"n": 1e308}}',
    b"[" * 20_000,
)
GARBAGE = (b"\x00" * 100, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"A" * 100_000)


class StrangeAnswer(Exception):
    """A client was answered otherwise than its kind should be."""


class ClientStorm:
    """The clients of one round. Each method is a kind of client; it raises StrangeAnswer, or an error of httpx."""

    def __init__(self, url: str, http: httpx.AsyncClient, rng: random.Random) -> None:
        self._http, self._rng = http, rng
        self._host, self._port = httpx.URL(url).host, httpx.URL(url).port
        self.kinds: dict[Callable[[], Awaitable[None]], int] = {
            self.complete: 5,
            self.stream: 4,
            self.leave: 5,
            self.send_invalid: 3,
            self.use_wrong_key: 2,
            self.crawl: 3,
            self.close_half: 2,
            self.send_garbage: 2,
            self.say_nothing: 1,
            self.ask_head: 1,
            self.read_slowly: 2,
        }
        """Relative frequency of each kind."""

    def make_body(self, *, stream: bool = False) -> bytes:
        """Returns a proper request for a small search."""
        x, a, b = (self._rng.randrange(2, 9) for _ in range(3))
        question = f"x0 = {x}. Each next term is {a} times the one before plus {b}, modulo 19. Find x3."
        body = {
            "model": self._rng.choice(("best-of-4", "beam-16")),
            "messages": [{"role": "user", "content": question}],
            "search": {"n": 4},
            "seed": self._rng.randrange(1 << 30),
            "max_tokens": 60,
            "stream": stream,
        }
        return json.dumps(body).encode()

    async def complete(self) -> None:
        """Asks and waits for the answer."""
        response = await self._http.post(CHAT, content=self.make_body())
        if response.status_code != 429:  # the queue is full
            require_answer(response)

    async def complete_at_rest(self) -> None:
        """Asks a server that has nothing else to do, and waits for the answer."""
        require_answer(await self._http.post(CHAT, content=self.make_body()))

    async def stream(self) -> None:
        """Asks for a stream and reads it to its end."""
        response = await self._http.post(CHAT, content=self.make_body(stream=True))
        if response.status_code == 429:
            return
        require_status(response, 200)
        if not response.text.endswith("data: [DONE]\n\n"):
            raise StrangeAnswer("a stream without an end")

    async def leave(self) -> None:
        """Disconnects at a random moment."""
        body = self.make_body(stream=self._rng.random() < 0.5)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.expovariate(2.0)):
                await self._http.post(CHAT, content=body)

    async def send_invalid(self) -> None:
        """Sends a body that is refused."""
        response = await self._http.post(CHAT, content=self._rng.choice(INVALID_BODIES))
        require_status(response, 400)
        if "message" not in response.json()["error"]:
            raise StrangeAnswer(f"a refusal without a message: {response.text[:100]}")

    async def use_wrong_key(self) -> None:
        """Sends a proper request with another key."""
        headers = {"authorization": f"Bearer {KEY}{self._rng.randrange(10)}"}
        require_status(await self._http.post(CHAT, content=self.make_body(), headers=headers), 401)

    async def ask_head(self) -> None:
        """Asks for the headers of a page alone."""
        response = await self._http.head("/health")
        require_status(response, 200)
        if response.content:
            raise StrangeAnswer("HEAD was answered with a body")

    async def crawl(self) -> None:
        """Sends a byte now and then, of the headers or the body, until the server has enough of it."""
        head = self.make_head(1000)
        data = head if self._rng.random() < 0.5 else self.make_body()
        async with self.connect() as (reader, writer):
            if data is not head:
                writer.write(head)
            with suppress(ConnectionError):
                for byte in data[:-1]:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    if reader.at_eof():
                        break
                    await asyncio.sleep(0.2)
                await reader.read()

    async def close_half(self) -> None:
        """Sends a proper request and closes its sending side; the server must close the connection."""
        body = self.make_body()
        async with self.connect() as (reader, writer):
            writer.write(self.make_head(len(body)) + body)
            writer.write_eof()
            with suppress(ConnectionError):
                await reader.read()

    async def send_garbage(self) -> None:
        """Sends what is no HTTP; the server must close the connection."""
        async with self.connect() as (reader, writer):
            with suppress(ConnectionError):
                writer.write(self._rng.choice(GARBAGE))
                await writer.drain()
                await reader.read()

    async def say_nothing(self) -> None:
        """Connects and sends nothing; the server must close the connection."""
        async with self.connect() as (reader, _):
            with suppress(ConnectionError):
                await reader.read()

    async def read_slowly(self) -> None:
        """Reads a stream in small pieces."""
        body = self.make_body(stream=True)
        async with self.connect() as (reader, writer):
            writer.write(self.make_head(len(body)) + body)
            received = b""
            while piece := await reader.read(128):
                received += piece
                await asyncio.sleep(0.01)
        if b" 429 " not in received[:20] and b"data: [DONE]" not in received:
            raise StrangeAnswer(f"a stream without an end: {received[:100]!r}")

    def make_head(self, length: int) -> bytes:
        """Returns the headers of a request with a body of this length."""
        fields = f"Host: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {length}\r\nConnection: close\r\n"
        return f"POST {CHAT} HTTP/1.1\r\n{fields}Content-Type: application/json\r\n\r\n".encode()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Opens a connection, and breaks it at the end."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


def require_answer(response: httpx.Response) -> None:
    """Raises StrangeAnswer if this is no answer with text."""
    require_status(response, 200)
    if not response.json()["choices"][0]["message"]["content"]:
        raise StrangeAnswer("an empty answer")


def require_status(response: httpx.Response, status: int) -> None:
    """Raises StrangeAnswer if the status is another one."""
    if response.status_code != status:
        raise StrangeAnswer(f"status {response.status_code}, not {status}: {response.text[:200]}")

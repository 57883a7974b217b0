"""Sends requests and reads replies within limits. Every reply of every server comes through here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ssl import SSLContext

import httpx2

from reason.engines.http.errors import ReplyBrokenOff, ReplyTimeout, ResponseLost, ServerUnreachable
from reason.engines.http.masking import SecretMask
from reason.engines.http.reply import WHOLE_STATUSES, BodyDecoder, Reply, ReplyLimits, parse_json

_CONNECT_S = 10.0
_EVENT, _END_OF_STREAM = b"data:", b"[DONE]"


class BoundedHttp:
    """Connections to all servers of a client. Redirects are not followed and cookies not stored.

    limits   of every reply; `fetch` can shorten its total
    api_key  sent with every request and hidden in everything that is read
    """

    def __init__(self, limits: ReplyLimits, api_key: str | None = None) -> None:
        self._limits, self.mask = limits, SecretMask(api_key)
        # The time limits of replies are kept here: httpx2's are for each read, which a drip never exceeds. There is no
        # limit on connections: ServerPool limits the requests per server. None is used twice: what a server sends after
        # one reply would be read as the next one, and a request on a connection that it is closing would be lost.
        self._client = httpx2.AsyncClient(
            headers={"Accept-Encoding": "gzip", "Connection": "close"}
            | ({} if api_key is None else {"Authorization": f"Bearer {api_key}"}),
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            verify=_load_certificates(),
        )

    async def fetch(
        self,
        method: str,
        server: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        total_s: float | None = None,
    ) -> Reply:
        """Returns the reply of a server at a path, whatever its status. `total_s` None is that of the limits.

        Raises: ServerUnreachable, ReplyTimeout or ResponseLost.
        """
        async with self._open(method, server, path, body, total_s) as (response, deadline):
            return await self._read_whole(server + path, response, deadline)

    async def read_events(
        self,
        server: str,
        path: str,
        body: Mapping[str, object],
        add_event: Callable[[object], bool],
        *,
        count_tokens: Callable[[], int],
        total_s: float | None = None,
    ) -> Reply | None:
        """Calls `add_event` with the JSON of each event of the stream that a POST returns, until it returns True.

        Returns the reply where it is no stream, by its status or because the server does not stream. The first token,
        by `count_tokens`, may take the total of the limits: a server may have a queue, and read a long prompt. From
        then on there is a limit on the silence between tokens, and on the bytes between them; `total_s` limits the
        whole stream, None as `fetch`.

        Raises: as `fetch`, and what `add_event` raises; ReplyBrokenOff where the connection ends before the stream.
        """
        # Leaving the block closes the connection, which is how servers notice that they can stop generating.
        url = server + path
        async with self._open("POST", server, path, body, total_s, is_stream=True) as (response, deadline):
            is_whole = response.headers.get("content-type", "").startswith("application/json")  # it does not stream
            if is_whole or response.status_code not in WHOLE_STATUSES:
                return await self._read_whole(url, response, deadline)
            decoder, line_begin = BodyDecoder(url, response.headers, self._limits.max_bytes), bytearray()
            num_tokens = 0
            async with aclosing(self._read_pieces(response, decoder)) as pieces:
                async for decoded in pieces:
                    line_begin += decoded
                    if b"\n" not in decoded:
                        continue
                    *lines, rest = bytes(line_begin).split(b"\n")
                    line_begin = bytearray(rest)
                    for data in [line[len(_EVENT) :].strip() for line in lines if line.startswith(_EVENT)]:
                        if data == _END_OF_STREAM or (data and add_event(self._parse_event(url, data))):
                            return None
                        if count_tokens() > num_tokens:
                            num_tokens = count_tokens()
                            deadline.note_progress()
                            decoder.begin_limit()
            raise ReplyBrokenOff(f"{url} ended in the middle: the stream broke off")

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def _read_whole(self, url: str, response: httpx2.Response, deadline: _Deadline) -> Reply:
        deadline.note_progress()
        decoder, body = BodyDecoder(url, response.headers, self._limits.max_bytes), bytearray()
        async with aclosing(self._read_pieces(response, decoder)) as pieces:
            async for piece in pieces:
                deadline.note_progress()
                body += piece
        decoder.finish()
        return Reply(url, response.status_code, response.headers, bytes(body), self.mask, self._limits.max_bytes)

    async def _read_pieces(self, response: httpx2.Response, decoder: BodyDecoder) -> AsyncGenerator[bytes]:
        async with aclosing(response.aiter_raw()) as received:
            async for piece in received:
                for decoded in decoder.decode(piece):
                    yield decoded
                    await asyncio.sleep(0)  # a bomb is many pieces; other requests and `close` go on in between

    def _parse_event(self, url: str, data: bytes) -> object:
        try:
            return parse_json(data, self.mask, self._limits.max_bytes)
        except ValueError:
            shown = self.mask.describe(data.decode(errors="replace"), 80)
            raise ResponseLost(f"{url} sent an event that is not JSON: {shown!r}") from None

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        server: str,
        path: str,
        body: Mapping[str, object] | None,
        total_s: float | None,
        *,
        is_stream: bool = False,
    ) -> AsyncIterator[tuple[httpx2.Response, _Deadline]]:
        """Yields the reply once its headers are there. Raises: ServerUnreachable, ReplyTimeout or ResponseLost."""
        url, limits = server + path, self._limits
        total_s = limits.total_s if total_s is None else total_s
        deadline = _Deadline(total_s, limits.idle_s, first_s=limits.total_s if is_stream else total_s)
        try:
            async with deadline.timer, self._client.stream(method, url, json=body) as response:
                yield response, deadline
        except TimeoutError:
            raise ReplyTimeout(f"{url} {deadline.describe_expiry()}") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise ServerUnreachable(f"{server} does not answer ({type(error).__name__})") from error
        except httpx2.HTTPError as error:  # what a server can cause; the other classes of httpx2 are errors of ours
            shown = self.mask.describe(str(error), 200)
            raise ReplyBrokenOff(f"{url} broke off ({type(error).__name__}: {shown})") from None


@cache
def _load_certificates() -> SSLContext:
    """Returns the certificates to trust; read once, because that takes longer than opening an engine does otherwise."""
    return httpx2.create_ssl_context()


class _Deadline:
    """The time limits of one reply, as one timer of asyncio; `first_s` is that of its beginning. Made on the loop."""

    def __init__(self, total_s: float, idle_s: float, *, first_s: float) -> None:
        self._total_s, self._idle_s, self._loop = total_s, idle_s, asyncio.get_running_loop()
        begin = self._loop.time()
        self._end, self._first_s = begin + total_s, first_s
        self.timer = asyncio.timeout_at(min(self._end, begin + first_s))
        self._has_begun = False

    def note_progress(self) -> None:
        """Begins a new silence. *Mutates*."""
        self._has_begun = True
        self.timer.reschedule(min(self._end, self._loop.time() + self._idle_s))

    def describe_expiry(self) -> str:
        """Returns which limit has passed."""
        if self._loop.time() >= self._end:
            return f"has not completed its reply within {self._total_s:g} s"
        if not self._has_begun:
            return f"has sent no token within {self._first_s:g} s (request_timeout_s)"
        return f"sent nothing for {self._idle_s:g} s in the middle of its reply (idle_timeout_s)"

"""One server, or a router in front of several: JSON in, JSON out, and every failure one of `faults`."""

from __future__ import annotations

from typing import Any

import httpx2

from decoding.core import OversizedRequest
from reason.remote.faults import Busy, Lost, Refused, Unreachable
from reason.remote.wire import error_text

_FULL = "queue is full"
_TOO_LONG = ("context length", "max_req_input_len", "longer than")
_NOTICE_S = 5.0  # enough for what costs a server no forward pass


class Server:
    """`url` without a path. Shares the connections of `http`, which has no base address of its own."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url, self._http = url, http

    async def generate(self, body: dict[str, Any]) -> Any:
        """The JSON of the reply. Raises: a fault, or OversizedRequest."""
        return await self._ask("POST", "/generate", body)

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of something that takes no forward pass. Raises: a fault."""
        return await self._ask(method, path, body, timeout=_NOTICE_S)

    async def abort(self, rid: str) -> None:
        """Tells the server that nobody waits for this request any more. Raises: a fault (a router knows no aborts)."""
        answer = await self._send("POST", "/abort_request", {"rid": rid}, timeout=_NOTICE_S)
        if answer.status_code != httpx2.codes.OK:
            raise Refused(f"{self.url} did not take the abort: HTTP {answer.status_code}")

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, **options: Any) -> Any:
        answer = await self._send(method, path, body, **options)
        try:
            content = answer.json()
        except ValueError as error:
            if answer.is_success:
                raise Lost(f"{self.url}{path} sent something that is not JSON: {answer.text[:80]!r}") from error
            content = answer.text[:200]
        if answer.is_success:
            return content
        raise self._fault(answer.status_code, path, error_text(content))

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, **options: Any) -> httpx2.Response:
        try:
            return await self._http.request(method, self.url + path, json=body, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Unreachable(f"{self.url} does not answer ({type(error).__name__})") from error
        except httpx2.TransportError as error:
            raise Lost(f"{self.url} broke off ({type(error).__name__}: {error})") from error

    def _fault(self, status: int, path: str, text: str) -> Exception:
        said = f"{self.url}{path} says {status}: {text}"
        if status == httpx2.codes.TOO_MANY_REQUESTS or _FULL in text:
            return Busy(said)
        if status == httpx2.codes.SERVICE_UNAVAILABLE:  # starting up, or a router without servers
            return Unreachable(said)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return Lost(said)
        return OversizedRequest(said) if any(part in text for part in _TOO_LONG) else Refused(said)

"""One address that is asked over HTTP: JSON in, JSON out, and every failure one of `faults`."""

from __future__ import annotations

from typing import Any

import httpx2

from decoding.core import OversizedRequest
from reason.engines.sglang_client.errors import Busy, Lost, Refused, Unreachable
from reason.engines.sglang_client.retry_after import told_to_wait
from reason.engines.sglang_client.wire import error_text

_TOO_LONG = ("context length", "context_length", "context size", "max_req_input_len", "longer than")


class Asker:
    """`url` is what paths are appended to. Shares the connections of `http`, which has no base address of its own."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url, self._http = url, http

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None, **options: Any) -> Any:
        """The JSON of the reply. Raises: a fault, or OversizedRequest."""
        answer = await self.send(method, path, body, **options)
        try:
            content = answer.json()
        except ValueError as error:
            if answer.is_success:
                raise Lost(f"{self.url}{path} sent something that is not JSON: {answer.text[:80]!r}") from error
            content = answer.text[:200]
        if answer.is_success:
            return content
        raise self.fault(answer.status_code, path, self.wording(content), answer.headers)

    async def send(self, method: str, path: str, body: dict[str, Any] | None, **options: Any) -> httpx2.Response:
        """The reply, whatever its status. Raises: Unreachable or Lost."""
        try:
            return await self._http.request(method, self.url + path, json=body, **options)
        except httpx2.TransportError as error:
            raise self.broken(error) from error

    def wording(self, content: Any) -> str:
        """What the body of an error says."""
        return error_text(content)

    def broken(self, error: httpx2.TransportError) -> Unreachable | Lost:
        """What a failure of the connection means for the request."""
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return Unreachable(f"{self.url} does not answer ({type(error).__name__})")
        return Lost(f"{self.url} broke off ({type(error).__name__}: {error})")

    def fault(self, status: int, path: str, text: str, headers: httpx2.Headers) -> Exception:
        """What a status that is no success means for the request; `text` is what the server says of it."""
        said, after_s = f"{self.url}{path} says {status}: {text}", told_to_wait(headers)
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            return Busy(said, after_s)
        if status == httpx2.codes.SERVICE_UNAVAILABLE:  # starting up, or a router without servers
            return Unreachable(said, after_s)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return Lost(said)
        return OversizedRequest(said) if any(part in text for part in _TOO_LONG) else Refused(said)

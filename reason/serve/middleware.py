"""What every request passes before anything reads it: the API key, the size of its body, the counting."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reason.serve.errors import ApiError

OPEN = ("/health",)
"""Paths that ask for no key."""

GONE = 499
"""The status under which requests of clients that went away are counted; nobody is left to be sent it."""


class Gate:
    """Wraps the app. `counted` is told endpoint, preset, status and seconds of every request; a handler may put
    `preset` and, where that is not what was sent, `status` into the request's state."""

    def __init__(
        self, app: ASGIApp, *, api_key: str | None, body_bytes: int, counted: Callable[[str, str, int, float], None]
    ) -> None:
        self._app, self._body_bytes, self._counted = app, body_bytes, counted
        self._key = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, sent = time.monotonic(), 0
        state = scope.setdefault("state", {})

        async def watched(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = message["status"]
            await send(message)

        try:
            error = self._refusal(Headers(scope=scope), scope["path"])
            if error is not None:
                return await error.response(scope, receive, watched)
            return await self._app(scope, self._limited(receive), watched)
        finally:
            route = getattr(scope.get("route"), "path", "")
            status = state.get("status") or sent or GONE
            self._counted(route, state.get("preset", ""), status, time.monotonic() - began)

    def _refusal(self, headers: Headers, path: str) -> ApiError | None:
        given = headers.get("authorization", "").encode("latin-1")
        if self._key is not None and path not in OPEN and not hmac.compare_digest(given, self._key):
            return ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._body_bytes:
            return ApiError(413, self._too_large, code="request_too_large")
        return None

    @property
    def _too_large(self) -> str:
        return f"the body is larger than the {self._body_bytes:,} bytes this server reads (serve.body_kib)"

    def _limited(self, receive: Receive) -> Receive:
        """Counts what is really sent: a length need not be declared."""
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return limited

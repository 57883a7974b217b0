"""ASGI middleware for every request: checks the API key and the size of the body, counts requests."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reason.serve.errors import ApiError

PUBLIC_PATHS = ("/health",)
"""Paths that need no API key."""

CLIENT_CLOSED_REQUEST = 499
"""Status under which requests of disconnected clients are counted; it is never sent."""


class RequestMiddleware:
    """Wraps the app. `count_request` is called with endpoint, preset, status and seconds of every request.

    A handler may set `preset` in the request's state, and `status` where it differs from the status that was sent.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None,
        body_bytes: int,
        count_request: Callable[[str, str, int, float], None],
    ) -> None:
        self._app, self._body_bytes, self._count_request = app, body_bytes, count_request
        self._key = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, sent_status = time.monotonic(), 0
        state = scope.setdefault("state", {})

        async def send_and_note(message: Message) -> None:
            nonlocal sent_status
            if message["type"] == "http.response.start":
                sent_status = message["status"]
            await send(message)

        try:
            error = self._check_headers(Headers(scope=scope), scope["path"])
            if error is not None:
                return await error.response(scope, receive, send_and_note)
            return await self._app(scope, self._limit_body(receive), send_and_note)
        finally:
            route = getattr(scope.get("route"), "path", "")
            status = state.get("status") or sent_status or CLIENT_CLOSED_REQUEST
            self._count_request(route, state.get("preset", ""), status, time.monotonic() - began)

    def _check_headers(self, headers: Headers, path: str) -> ApiError | None:
        given = headers.get("authorization", "").encode("latin-1")
        if self._key is not None and path not in PUBLIC_PATHS and not hmac.compare_digest(given, self._key):
            return ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._body_bytes:
            return ApiError(413, self._too_large_message, code="request_too_large")
        return None

    @property
    def _too_large_message(self) -> str:
        return f"the body is larger than the {self._body_bytes:,} bytes this server reads (serve.body_kib)"

    def _limit_body(self, receive: Receive) -> Receive:
        """Counts the bytes that are really received: a client need not declare a length."""
        read = 0

        async def receive_limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._body_bytes:
                raise HTTPException(413, self._too_large_message)
            return message

        return receive_limited

"""Refuses requests before the routes see them: without the API key, too large, or in a form that is not read."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reason.serve.errors import ApiError
from reason.serve.middleware import CLIENT_CLOSED_REQUEST

PUBLIC_PATHS = ("/health",)
"""Paths that need no API key."""

HEADER_BYTES = 32 << 10
"""Maximum size of a request line and its headers together."""


class RequestGate:
    """Wraps the app: checks the API key, the headers and the size of the body."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, body_bytes: int) -> None:
        self._app, self._body_bytes = app, body_bytes
        self._key = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        error = self._check_key(headers, scope["path"]) or _check_form(scope, headers) or self._check_length(headers)
        if error is not None:
            return await error.response(scope, receive, send)
        return await self._app(scope, self._limit_body(scope, receive), send)

    def _check_key(self, headers: Headers, path: str) -> ApiError | None:
        given = headers.get("authorization", "").encode("latin-1")
        if self._key is None or path in PUBLIC_PATHS or hmac.compare_digest(given, self._key):
            return None
        return ApiError(
            401,
            "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_length(self, headers: Headers) -> ApiError | None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._body_bytes:
            return ApiError(413, self._too_large_message, code="request_too_large")
        return None

    @property
    def _too_large_message(self) -> str:
        return f"the body is larger than the {self._body_bytes:,} bytes this server reads (serve.body_kib)"

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Counts the bytes that are really received: a client need not declare a length."""
        read, complete = 0, False

        async def receive_limited() -> Message:
            nonlocal read, complete
            message = await receive()
            if message["type"] == "http.disconnect" and not complete:
                scope["state"]["status"] = CLIENT_CLOSED_REQUEST  # the framework would count it as a wrong body
            read += len(message.get("body", b""))
            complete = complete or not message.get("more_body", False)
            if read > self._body_bytes:
                raise HTTPException(413, self._too_large_message)
            return message

        return receive_limited


def _check_form(scope: Scope, headers: Headers) -> ApiError | None:
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > HEADER_BYTES:
        return ApiError(431, f"the request's headers are larger than {HEADER_BYTES:,} bytes", code="request_too_large")
    if "transfer-encoding" in headers and "content-length" in headers:
        # a proxy in front may believe the other one: what follows would be a request that it has not checked
        message = "a request has Content-Length or Transfer-Encoding, not both"
        return ApiError(400, message, code="invalid_http", headers={"Connection": "close"})
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"the body is sent as {encoding!r}; this server reads plain JSON, without Content-Encoding"
        return ApiError(415, message, code="unsupported_encoding", headers={"Accept-Encoding": "identity"})
    return None

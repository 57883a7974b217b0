"""ASGI middleware around every request: gives it an id, answers HEAD as GET, counts it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reason.serve import request_id
from reason.serve.errors import stopping_error

CLIENT_CLOSED_REQUEST = 499
"""Status under which requests of disconnected clients are counted; it is never sent."""

ABSOLUTE_FORM = re.compile(r"^https?://[^/]*", re.IGNORECASE)
"""What a request line through a proxy has before its path."""


class RequestMiddleware:
    """Wraps the app. `count_request` is called with endpoint, preset, status and seconds of every request.

    A handler may set `preset` in the request's state, and `status` where it differs from the status that was sent.
    """

    def __init__(self, app: ASGIApp, *, count_request: Callable[[str, str, int, float], None]) -> None:
        self._app, self._count_request = app, count_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, sent_status = time.monotonic(), 0
        name = request_id.choose_request_id(Headers(scope=scope).get(request_id.HEADER))
        request_id.current_request_id.set(name)  # the task is the request's own: nothing to reset
        inner = _routed_scope(scope)

        async def send_with_id(message: Message) -> None:
            nonlocal sent_status
            if message["type"] == "http.response.start":
                sent_status = message["status"]
                MutableHeaders(scope=message)[request_id.HEADER] = name
            await send(message)

        try:
            return await self._app(inner, receive, send_with_id)
        except asyncio.CancelledError:  # the server stops, and serve.grace is over
            if sent_status:
                raise
            await stopping_error().response(inner, receive, send_with_id)
        finally:
            route = getattr(inner.get("route"), "path", "")
            status = inner["state"].get("status") or sent_status or CLIENT_CLOSED_REQUEST
            self._count_request(route, inner["state"].get("preset", ""), status, time.monotonic() - began)


def _routed_scope(scope: Scope) -> Scope:
    """Returns the scope that the routes see: HEAD as GET, of which the HTTP server sends no body; a path alone."""
    return {
        **scope,
        "method": "GET" if scope["method"] == "HEAD" else scope["method"],
        "path": ABSOLUTE_FORM.sub("", scope["path"]) or "/",
        "state": scope.get("state", {}),
    }

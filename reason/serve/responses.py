"""HTTP responses: JSON in pure ASCII, event streams, and work that ends when the client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")


def encode_json(data: object) -> bytes:
    r"""Encodes `data` as JSON on one line; ASCII only, so that half a surrogate pair in a generated text is no error.

    >>> encode_json({"text": "é\ud800"})
    b'{"text":"\\u00e9\\ud800"}'
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_response(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response with `data` as its JSON body."""
    return Response(encode_json(data), status, dict(headers or {}), media_type="application/json")


class ClientGone(Exception):
    """The client disconnected, so there is no connection to answer on."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, which is cancelled when the client disconnects. The body must have been read.

    Raises: ClientGone then; what `work` raises.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStreamResponse(StreamingResponse):
    """Server-sent events. `resources` is closed when the stream ends, also if it ends before its first event.

    stopping_event   returns the last event of a stream that the server's stop cuts short
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        resources: AsyncExitStack,
        headers: dict[str, str],
        *,
        stopping_event: Callable[[], bytes],
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache", **headers})
        self._resources, self._stopping_event = resources, stopping_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent: Message = {}

        async def send_and_note(message: Message) -> None:
            nonlocal sent
            sent = message
            await send(message)

        try:
            async with self._resources:
                await super().__call__(scope, receive, send_and_note)
        except asyncio.CancelledError:  # the server stops, and serve.grace is over
            if not sent:
                raise
            if sent.get("more_body", True):
                await send({"type": "http.response.body", "body": self._stopping_event(), "more_body": False})

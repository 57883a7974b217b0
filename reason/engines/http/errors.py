"""Errors of a request to a server, one class for each remedy, and what a server's error reply says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime


class TransientError(Exception):
    """The request may succeed when it is sent again. `retry_after_s` is the pause that the server asks for, or None."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(TransientError):
    """The server runs and its queue is full (HTTP 429). Remedy: wait, then send to the same server."""


class ServerUnreachable(TransientError):
    """Nothing was sent or nothing was started (connection refused, HTTP 503). Remedy: another server, or wait."""


class ResponseLost(TransientError):
    """The request was sent and no complete response came back. Remedy: another server. The request may be the cause."""


class RequestRejected(ValueError):
    """The server says that the request is wrong; sending it again would not help."""


class NoServer(RuntimeError):
    """No server responded within the time limit, or one request lost too many responses."""


def parse_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Returns the pause in seconds that the headers of a reply ask for; None where there is none or it is unreadable.

    `now` is the wall-clock time that a date in the header is compared with, the present by default.

    >>> parse_retry_after({"retry-after": "2"}), parse_retry_after({"retry-after": "soon"}), parse_retry_after({})
    (2.0, None, None)
    >>> parse_retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, now=50.0)
    10.0
    >>> parse_retry_after({"retry-after-ms": "500", "retry-after": "1"})  # some vendors are more exact
    0.5
    """
    now = time.time() if now is None else now
    with suppress(KeyError, ValueError):
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    header = headers.get("retry-after")
    if header is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(header))
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    return None


def find_error_message(body: object) -> str:
    """Returns the message of an error reply, in any of the shapes that servers and routers use.

    >>> find_error_message({"error": {"message": "bad"}}), find_error_message({"object": "error", "message": "bad"})
    ('bad', 'bad')
    >>> find_error_message({"error": "no such field"}), find_error_message({"detail": [1]}), find_error_message("oops")
    ('no such field', '[1]', 'oops')
    """
    while isinstance(body, Mapping):
        inner = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
        if inner is None:
            break
        body = inner
    return str(body)

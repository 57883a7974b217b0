"""Errors of a request to a server, one class for each remedy, and what a server's error reply says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime

from decoding.validation import shorten
from reason.engines.http.masking import to_one_line

_MAX_RETRY_AFTER_S = 86400.0  # a longer pause is a wrong clock or nonsense, and no use to any run


class TransientError(Exception):
    """The request may succeed when it is sent again. `retry_after_s` is the pause that the server asks for, or None.

    The message is one line without control characters: parts of it may be a server's text.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(to_one_line(message))
        self.retry_after_s = retry_after_s


class Overloaded(TransientError):
    """The server runs and its queue is full (HTTP 429). Remedy: wait, or another server where that one stays full."""


class ServerUnreachable(TransientError):
    """Nothing was sent or nothing was started (connection refused, HTTP 503). Remedy: another server, or wait."""


class ResponseLost(TransientError):
    """The request was sent and no complete response came back. Remedy: another server. The request may be the cause."""


class ReplyTimeout(ResponseLost):
    """The response was not complete within its time limit, or stopped in the middle for too long."""


class ReplyBrokenOff(ResponseLost):
    """The connection ended in the middle of a reply. What has come of a stream by then can be believed."""


class ServerSwitched(TransientError):
    """Another server should take the request now: this one has failed, stays full, or alone rejects it."""


class RequestRejected(ValueError):
    """The server says that the request is wrong; sending it again would not help."""


class NoServer(RuntimeError):
    """No server responded within the time limit, or one request lost too many responses."""


@contextmanager
def treat_as_lost(expected: str) -> Iterator[None]:
    """Turns every error of reading a reply in the block into ResponseLost; `expected` says what the reply should be.

    Servers are not trusted: any value may be of any type, number or depth.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        # Without the cause: its text is the server's, and may be long.
        raise ResponseLost(f"the reply is not {expected}: {type(error).__name__} {error}") from None


def parse_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Returns the pause in seconds that the headers of a reply ask for; None where there is none that makes sense.

    `now` is the wall-clock time that a date in the header is compared with, the present by default. A pause of more
    than a day makes none.

    >>> parse_retry_after({"retry-after": "2"}), parse_retry_after({"retry-after": "soon"}), parse_retry_after({})
    (2.0, None, None)
    >>> parse_retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, now=50.0)
    10.0
    >>> parse_retry_after({"retry-after-ms": "500", "retry-after": "1"})  # some vendors are more exact
    0.5
    >>> parse_retry_after({"retry-after": "1e300"}), parse_retry_after({"retry-after": "nan"})
    (None, None)
    """
    now = time.time() if now is None else now
    with suppress(KeyError, ValueError):
        return _to_pause(float(headers["retry-after-ms"]) / 1000)
    header = headers.get("retry-after")
    if header is None:
        return None
    with suppress(ValueError):
        return _to_pause(float(header))
    with suppress(ValueError, OverflowError, OSError):  # dates that a calendar or the system's clock does not have
        return _to_pause(parsedate_to_datetime(header).timestamp() - now)
    return None


def _to_pause(seconds: float) -> float | None:
    """Returns the pause, 0 for a past instant; None for NaN and for more than a day."""
    return max(0.0, seconds) if seconds <= _MAX_RETRY_AFTER_S else None


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
    return body if isinstance(body, str) else shorten(body)

"""Names each request: the name is in the reply's `X-Request-Id` header and in every log line of the request."""

from __future__ import annotations

import logging
import re
import uuid
from contextvars import ContextVar

HEADER = "x-request-id"

REQUEST_ID = re.compile(r"[!-~]{1,128}")
"""Printable ASCII without spaces: neither a header nor a log line can be broken by it."""

current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)
"""Id of the request under way. Tasks, threads and searches that a request starts inherit it."""


def choose_request_id(given: str | None) -> str:
    """Returns the client's id if it is short printable ASCII, else a new one.

    >>> choose_request_id("job-7"), len(choose_request_id("two\\nlines")), len(choose_request_id(None))
    ('job-7', 32, 32)
    """
    return given if given is not None and REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


class RequestIdFilter(logging.Filter):
    """Adds the field `request_id` to the log records of a request; other records stay as they are."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns True, always. *Mutates* the record."""
        if (request_id := current_request_id.get()) is not None:
            record.request_id = request_id
        return True

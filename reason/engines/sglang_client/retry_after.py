"""How long a server asks to be left alone, as its reply's headers say."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime


def told_to_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds from `now` (the clock of the wall, by default the present); None where nothing readable is said.

    >>> told_to_wait({"retry-after": "2"}), told_to_wait({"retry-after": "soon"}), told_to_wait({})
    (2.0, None, None)
    >>> told_to_wait({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, now=50.0)
    10.0
    >>> told_to_wait({"retry-after-ms": "500", "retry-after": "1"})         # some vendors are more exact
    0.5
    """
    now = time.time() if now is None else now
    with suppress(KeyError, ValueError):
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    said = headers.get("retry-after")
    if said is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(said))
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    return None

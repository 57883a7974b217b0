"""JSON answers that can carry any text: pure ASCII, so that half a character is no error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response


def dumps(data: Any) -> bytes:
    r"""`data` as JSON on one line.

    >>> dumps({"text": "é\ud800"})
    b'{"text":"\\u00e9\\ud800"}'
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")


def reply(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(dumps(data), status, dict(headers or {}), media_type="application/json")

"""Put data into a page so that nothing in it can be taken for a part of the page."""

from __future__ import annotations

import json
import math
import re
from importlib.resources import files
from typing import Any

PLACE = "__DATA__"
PART = re.compile(r"__INCLUDE\((.+?)\)__")


def fill(name: str, data: Any) -> str:
    """The page `name` of this package with `data` as JSON where it says `__DATA__`."""
    page = template(name)
    assert page.count(PLACE) == 1, name
    return page.replace(PLACE, embed(data))


def template(name: str) -> str:
    """A file of this package, with the text of another one where it says `__INCLUDE(other)__`."""
    text = files("reason.runs.pages").joinpath(name).read_text(encoding="utf-8")
    return PART.sub(lambda found: template(found[1]).rstrip("\n"), text)


def embed(data: Any) -> str:
    r"""`data` as JSON that may stand inside a script element; it is pure ASCII, numbers that are none become null.

    An element ends where its text says `</`, and a comment begins with `<!--`: neither can occur without `<`.

    >>> embed({"text": "</script>", "score": float("nan")})
    '{"text":"\\u003c/script\\u003e","score":null}'
    """
    text = json.dumps(_finite(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # they occur inside strings only, where an escape means the same
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data

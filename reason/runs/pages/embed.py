"""Embeds data in a page, escaped so that no text in it can act as a part of the page."""

from __future__ import annotations

import json
import math
import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

PLACE = "__DATA__"
PART = re.compile(r"__INCLUDE\((.+?)\)__")


def fill_template(name: str, data: object) -> str:
    """Returns the page `name` of this package with `data` as JSON in the place of `__DATA__`."""
    page = read_template(name)
    assert page.count(PLACE) == 1, name
    return page.replace(PLACE, embed_json(data))


@cache
def read_template(name: str) -> str:
    """Reads a file of this package and replaces each `__INCLUDE(other)__` by the text of the other file."""
    text = files("reason.runs.pages").joinpath(name).read_text(encoding="utf-8")
    return PART.sub(lambda match: read_template(match[1]).rstrip("\n"), text)


def embed_json(data: object) -> str:
    r"""Formats `data` as JSON that may stand inside a script element: pure ASCII, NaN and infinity become null.

    An element ends where its text says `</`, and a comment begins with `<!--`: neither can occur without `<`.

    >>> embed_json({"text": "</script>", "score": float("nan")})
    '{"text":"\\u003c/script\\u003e","score":null}'
    """
    text = json.dumps(_finite(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # they occur inside strings only, where an escape means the same
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(data: object) -> object:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def link_page(page: Path, home: Path) -> str:
    """Returns the address of a page in a page that will be in the folder `home`."""
    return quote(Path(os.path.relpath(page, home)).as_posix())  # a folder may be called `n=4#2`

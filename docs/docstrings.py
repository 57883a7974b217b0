"""Docstrings as Markdown: examples are code, and lists of fields keep their columns."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

COLUMNS = re.compile(r"[\w*`][\w*`, ]*? {2,}\S")


class Docstrings(Extension):
    """Rewrites every docstring that is shown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(map(shown, re.split(r"\n\s*\n", obj.docstring.value)))


def shown(paragraph: str) -> str:
    """The paragraph, fenced where its lines are to stay lines."""
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if COLUMNS.match(paragraph):
        return f"```text\n{paragraph}\n```"
    return paragraph

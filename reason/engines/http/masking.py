"""Makes the text of a server fit to be shown, logged and saved: without the key, on one line, of a sensible length."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote

MASK = "***"
_MIN_SECRET = 8  # shorter keys are placeholders such as EMPTY, which a model may write as well
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")


def to_one_line(text: str, max_length: int = 1000) -> str:
    """Returns the beginning of a text on one line, without control characters, which could change a terminal.

    >>> to_one_line("no\\x1b[31m such\\n\\nmodel"), to_one_line("abcdef", max_length=4)
    ('no [31m such model', 'abc…')
    """
    begin = text[: 4 * max_length]
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in begin).split())
    return line if len(line) <= max_length and len(begin) == len(text) else line[: max_length - 1] + "…"


class SecretMask:
    """Hides the key of a server, also as it is spelled in addresses, in JSON or in base64. Its `repr` shows nothing.

    key  None where the server has none
    """

    def __init__(self, key: str | None) -> None:
        spellings: set[str] = set()
        if key:
            encoded = (base64.b64encode(text.encode()).decode() for text in (key, f"Bearer {key}"))
            spellings = {key, json.dumps(key)[1:-1], quote(key, safe=""), *encoded}
        # The longest first: another may be a part of it.
        self._spellings = tuple(sorted(spellings, key=len, reverse=True))
        self._is_secret = key is not None and len(key) >= _MIN_SECRET

    def describe(self, text: str, max_length: int = 500) -> str:
        """Returns a server's text for a message.

        >>> SecretMask("sk-secret").describe("wrong key:\\nBearer sk-secret")
        'wrong key: Bearer ***'
        """
        return to_one_line(self._hide(text), max_length)

    def hide_in_text(self, text: str) -> str:
        """Returns generated text without the key. A key of fewer than 8 characters stays: it may be a word."""
        return self._hide(text) if self._is_secret else text

    def hide_in_json(self, body: bytes, parsed: object) -> object:
        """Returns `parsed`, the JSON of `body`, with the key hidden in all of its strings, as `hide_in_text` does."""
        if not self._is_secret:
            return parsed
        may_hold = any(spelling.encode() in body for spelling in self._spellings) or _ESCAPED_ASCII.search(body)
        return self._hide_in_value(parsed) if may_hold else parsed

    def _hide(self, text: str) -> str:
        for spelling in self._spellings:
            text = text.replace(spelling, MASK)
        return text

    def _hide_in_value(self, value: object) -> object:
        if isinstance(value, str):
            return self._hide(value)
        if isinstance(value, list):
            return [self._hide_in_value(item) for item in value]
        if isinstance(value, dict):
            return {self._hide(key): self._hide_in_value(item) for key, item in value.items()}
        return value

"""A key that a server sends back is shown nowhere, however it is spelled; no text of a server commands a terminal."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from reason.engines.http.masking import SecretMask
from reason.engines.http.reply import parse_json

KEY = 'sk-secret/+&"key'
ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
SPELLINGS = (
    *(KEY, json.dumps(KEY)[1:-1], quote(KEY, safe="")),
    *(base64.b64encode(text.encode()).decode() for text in (KEY, f"Bearer {KEY}")),
)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_key_is_hidden_in_every_spelling(spelling: str) -> None:
    mask = SecretMask(KEY)
    assert mask.describe(f"wrong key:\n'Bearer {spelling}'") == "wrong key: 'Bearer ***'"
    assert KEY not in repr(mask) + repr(vars(mask)["_is_secret"])


@pytest.mark.parametrize("body", [f'["a {ESCAPED}"]'.encode(), json.dumps([f"a {KEY}"]).encode()])
def test_key_is_hidden_in_json(body: bytes) -> None:
    assert parse_json(body, SecretMask(KEY), 10_000) == ["a ***"]
    nested = b'{"x": {"y": ' + body + b"}}"
    assert parse_json(nested, SecretMask(KEY), 10_000) == {"x": {"y": ["a ***"]}}


def test_placeholder_key_stays_in_generated_text_and_not_in_messages() -> None:
    mask = SecretMask("EMPTY")
    assert parse_json(b'["EMPTY set"]', mask, 10_000) == ["EMPTY set"]
    assert mask.hide_in_text("EMPTY set") == "EMPTY set"
    assert mask.describe("EMPTY key") == "*** key"
    assert SecretMask(None).describe("no key") == "no key"


def test_message_is_one_line_without_control_characters() -> None:
    shown = SecretMask(None).describe("\x1b]0;title\x07 red\r\n\u202etext\ud800 " + "x" * 9999)
    assert shown.startswith("]0;title red text x")
    assert shown.isprintable()
    assert len(shown) == 500

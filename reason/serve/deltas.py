"""Divides the text of a reply into the deltas of a stream: clients show a text that grows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from reason.serve.choices import TokenLogprob

MAX_DELTAS = 200
"""Deltas of one text, at most: each is an event with a head of its own."""

_WORD = re.compile(r"\s*\S{1,16}|\s+")


@dataclass(frozen=True)
class TextDelta:
    """A part of a text, which begins at the character `offset`, and its tokens where they are known."""

    text: str
    offset: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None


def split_text(text: str, logprobs: Sequence[TokenLogprob] | None = None) -> list[TextDelta]:
    """Divides a text at the borders of its words, or of its tokens where they have log-probabilities.

    The tokens stay with their characters; where they do not spell the text, the text is one delta.

    >>> [delta.text for delta in split_text("The answer is\\n4.")]
    ['The', ' answer', ' is', '\\n4.']
    """
    if logprobs is None:
        return _join_parts([(word, ()) for word in _WORD.findall(text)], has_tokens=False) or [TextDelta(text)]
    if "".join(token.text for token in logprobs) != text or not text:
        return [TextDelta(text, 0, tuple(logprobs))]
    return _join_parts([(token.text, (token,)) for token in logprobs], has_tokens=True)


def _join_parts(parts: Sequence[tuple[str, tuple[TokenLogprob, ...]]], *, has_tokens: bool) -> list[TextDelta]:
    """Returns the parts, as many successive ones together as make at most `MAX_DELTAS` deltas."""
    size = -(-len(parts) // MAX_DELTAS)
    left, deltas, offset = iter(parts), list[TextDelta](), 0
    while group := list(islice(left, size)):
        text = "".join(part for part, _ in group)
        tokens = tuple(token for _, of_part in group for token in of_part)
        deltas.append(TextDelta(text, offset, tokens if has_tokens else None))
        offset += len(text)
    return deltas

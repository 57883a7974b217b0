"""Where the steps of a generation end, decided on tokens; text only says whether the delimiter is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from decoding.core import Authorship, Tokens
from search.tree import Step


def step_ends(tokens: Tokens, decode: Callable[[Tokens], str], delimiter: str) -> list[int]:
    """The end (exclusive) of every step; the last is `len(tokens)`, so each token is in exactly one step.

    A step ends with the token that completes the delimiter, whatever else that token holds. What is left
    over is the last step, unless it is blank: then it belongs to the step before.

    >>> step_ends((97, 10, 10, 98, 10, 10, 32), lambda ids: bytes(ids).decode(), "\\n\\n")
    [3, 7]
    """
    ends: list[int] = []
    start = 0
    while start < len(tokens):
        end = _first_end(tokens, start, decode, delimiter)
        if end is None:
            if ends and not decode(tokens[start:]).strip():
                ends.pop()
            end = len(tokens)
        ends.append(end)
        start = end
    return ends


def split_steps(
    tokens: Tokens, logprobs: tuple[float, ...], decode: Callable[[Tokens], str], delimiter: str
) -> list[Step]:
    """The steps of one generation, in order, with their text and their own log-probabilities."""
    ranges = pairwise([0, *step_ends(tokens, decode, delimiter)])
    return [Step(tokens[a:b], decode(tokens[a:b]), logprobs[a:b]) for a, b in ranges]


def signed(steps: Sequence[Step], authors: Sequence[Authorship]) -> list[Step]:
    """The steps with whoever wrote the last token of each."""
    written, found = 0, []
    for step in steps:
        written += len(step.tokens)
        by = next((author for author in authors if author.end >= written), None)
        found.append(step if by is None else replace(step, author=by.author, route=by.score))
    return found


def _first_end(tokens: Tokens, start: int, decode: Callable[[Tokens], str], delimiter: str) -> int | None:
    """The smallest `end` such that `tokens[start:end]` holds the delimiter; None if none does.

    Doubles the window, then bisects it: the cost is that of decoding the step a few times, not once per token.
    """
    low, width = start, 16
    while delimiter not in decode(tokens[start : start + width]):
        low = start + width
        if low >= len(tokens):
            return None
        width *= 2
    high = min(start + width, len(tokens))
    while high - low > 1:
        middle = (low + high) // 2
        if delimiter in decode(tokens[start:middle]):
            high = middle
        else:
            low = middle
    return high

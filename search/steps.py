"""Splits generations into steps at token boundaries; text is decoded only to find complete delimiters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from decoding.core import StepOrigin, Tokens
from search.tree import Step


def step_ends(tokens: Tokens, decode: Callable[[Tokens], str], delimiter: str) -> list[int]:
    """Computes the end (exclusive) of each step; the last is `len(tokens)`, so each token is in exactly one step.

    A step ends with the token that completes the delimiter, even if that token holds more text. Tokens after the last
    delimiter are a step, unless they are blank: then they belong to the step before.

    >>> step_ends((97, 10, 10, 98, 10, 10, 32), lambda ids: bytes(ids).decode(), "\\n\\n")
    [3, 7]
    """
    ends: list[int] = []
    start = 0
    while start < len(tokens):
        end = _first_step_end(tokens, start, decode, delimiter)
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
    """Splits one generation into its steps, in order, each with its text and log-probabilities."""
    ranges = pairwise([0, *step_ends(tokens, decode, delimiter)])
    return [Step(tokens[a:b], decode(tokens[a:b]), logprobs[a:b]) for a, b in ranges]


def attribute_steps(steps: Sequence[Step], origins: Sequence[StepOrigin]) -> list[Step]:
    """Sets `model` and `routing_score` of each step to those of its last token; without origins nothing changes."""
    end, attributed = 0, []
    for step in steps:
        end += len(step.tokens)
        # `origin.end` is exclusive, so the origin of token `end - 1` is the first that ends at `end` or later.
        origin = next((origin for origin in origins if origin.end >= end), None)
        attributed.append(step if origin is None else replace(step, model=origin.model, routing_score=origin.score))
    return attributed


def _first_step_end(tokens: Tokens, start: int, decode: Callable[[Tokens], str], delimiter: str) -> int | None:
    """The smallest `end` such that `tokens[start:end]` holds the delimiter; None if none does.

    Doubles the window, then bisects it: the step is decoded a few times, not once per token.
    """
    low, width = start, 16
    while delimiter not in decode(tokens[start : start + width]):
        low = start + width
        if low >= len(tokens):
            return None
        width *= 2
    high = min(start + width, len(tokens))
    while high - low > 1:  # the delimiter is in tokens[start:high] and not in tokens[start:low]
        middle = (low + high) // 2
        if delimiter in decode(tokens[start:middle]):
            high = middle
        else:
            low = middle
    return high

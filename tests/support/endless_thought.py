"""A model that never ends its thought by itself, one token per character, and answers 7 where it is ended by force."""

from __future__ import annotations

from decoding.core import Tokens
from search.thought import ThoughtBudget

END = b" Enough.</think>The answer is "


def is_open(text: str) -> bool:
    return "</think>" not in text


def think_for_ever(seed: int, prefix: Tokens) -> str:
    """A thought without end; behind the forced end, an answer."""
    del seed
    if bytes(prefix).endswith(END):
        return "\\boxed{7}."
    return "hmm. " * 2000 if is_open(bytes(prefix).decode()) else ""


def limits(max_tokens: int | None, answer_tokens: int = 60) -> ThoughtBudget:
    return ThoughtBudget(is_open=is_open, forced_end=tuple(END), max_tokens=max_tokens, answer_tokens=answer_tokens)

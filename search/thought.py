"""Ends thoughts at a budget: the closing tag is put in, and the answer asked for (budget forcing, arXiv 2501.19393)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decoding.core import Generation, Tokens


@dataclass(frozen=True, kw_only=True)
class ThoughtBudget:
    """When and how the thoughts of one problem are ended by force.

    is_open        whether a solution with this text is still inside its thought
    forced_end     tokens put in behind an unfinished thought: its closing tag, and the beginning of the answer
    max_tokens     tokens of a thought; None: as many as leave room for the answer
    answer_tokens  room left for `forced_end` and the answer within all limits of a solution, at most a quarter of it
    """

    is_open: Callable[[str], bool]
    forced_end: Tokens
    max_tokens: int | None
    answer_tokens: int

    def remaining(self, used: int, room: int) -> int:
        """Returns how many tokens a thought may go on for; 0 and less ends it.

        used  its tokens so far
        room  tokens that its solution may still have

        >>> budget = ThoughtBudget(is_open=bool, forced_end=(1,), max_tokens=100, answer_tokens=20)
        >>> budget.remaining(70, 500), budget.remaining(70, 35), budget.remaining(100, 500)
        (30, 15, 0)
        """
        left = room - min(self.answer_tokens, (used + room) // 4)
        return left if self.max_tokens is None else min(left, self.max_tokens - used)

    def put_in_end(self, thought: Generation) -> Generation:
        """Returns a generation with the forced end behind it. Its tokens are certain: their log-probability is 0."""
        has_logprobs = len(thought.logprobs) == len(thought.tokens)
        return Generation(
            tokens=thought.tokens + self.forced_end,
            logprobs=(*thought.logprobs, *[0.0] * len(self.forced_end)) if has_logprobs else (),
            finish="length",
            usage=thought.usage,
            origins=thought.origins,
        )

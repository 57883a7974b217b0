"""Ends thoughts: at a budget, early, or later than the model would (budget forcing, arXiv 2501.19393)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decoding.core import Generation, Tokens
from search.generations import join_generations
from search.probes import Probe, ThoughtProbes
from search.thinking_time import ThinkingTime
from search.uncertainty import make_certain


@dataclass(frozen=True, kw_only=True)
class ThoughtBudget:
    """When and how the thoughts of one problem are ended by force.

    is_open        whether a solution with this text is still inside its thought
    forced_end     tokens put in behind an unfinished thought: its closing tag, and the beginning of the answer
    max_tokens     tokens of a thought; None: as many as leave room for the answer
    answer_tokens  room left for `forced_end` and the answer within all limits of a solution, at most a quarter of it,
                   and at least `forced_end` and a token; 0: none is left
    closing        text of the closing tag; where it is "" `is_open` reads the whole text more often
    probes         how it is found out that a thought may end before its budget; None: it is not
    waits          how many times a thought that would end before its budget goes on
    wait           tokens put in instead of its closing tag
    """

    is_open: Callable[[str], bool]
    forced_end: Tokens
    max_tokens: int | None
    answer_tokens: int
    closing: str = ""
    probes: ThoughtProbes | None = None
    waits: int = 0
    wait: Tokens = ()

    def remaining(self, used: int, room: int) -> int:
        """Returns how many tokens a thought may go on for; 0 and less ends it.

        used  its tokens so far
        room  tokens that its solution may still have

        >>> budget = ThoughtBudget(is_open=bool, forced_end=(1,), max_tokens=100, answer_tokens=20)
        >>> budget.remaining(70, 500), budget.remaining(70, 35), budget.remaining(100, 500)
        (30, 15, 0)
        """
        reserve = min(self.answer_tokens, (used + room) // 4)
        # also of a small room: behind the forced end there is one token at least
        left = room - (max(reserve, len(self.forced_end) + 1) if self.answer_tokens else 0)
        return left if self.max_tokens is None else min(left, self.max_tokens - used)

    def put_in_end(self, thought: Generation) -> Generation:
        """Returns a generation with the forced end behind it. Its tokens are certain: their log-probability is 0."""
        return put_in(thought, self.forced_end)


@dataclass(frozen=True)
class ThoughtHistory:
    """What happened to the thought of a path so far.

    probes  its interim answers, in order
    waits   for each time that it had to go on, its tokens before that
    hint    its tokens before the hint that it should end; None: it had none
    """

    probes: tuple[Probe, ...] = ()
    waits: tuple[int, ...] = ()
    hint: int | None = None

    def until(self, num_tokens: int) -> ThoughtHistory:
        """Returns what belongs to the first `num_tokens` tokens of the path."""
        if not self.probes and not self.waits and self.hint is None:
            return self
        return ThoughtHistory(
            tuple(probe for probe in self.probes if probe.num_tokens <= num_tokens),
            tuple(wait for wait in self.waits if wait < num_tokens),
            None if self.hint is None or self.hint >= num_tokens else self.hint,
        )


NO_HISTORY = ThoughtHistory()


@dataclass(frozen=True, kw_only=True)
class OpenThought:
    """The unfinished thought in which a continuation begins.

    num_tokens    its tokens so far
    remaining     tokens for which it may go on; 0 and less: it is ended at once
    room          tokens that its solution may still have; a probe takes no more than these
    probe_tokens  tokens reserved for probes
    path_text     text of the solution so far
    time          the time that it may take; None: no limit
    is_spare      whether it begins behind the prompt, and an earlier branch of the search does too
    """

    budget: ThoughtBudget
    num_tokens: int
    remaining: int
    room: int
    probe_tokens: int
    path_text: str
    history: ThoughtHistory
    time: ThinkingTime | None = None
    is_spare: bool = False


def put_in(before: Generation, tokens: Tokens) -> Generation:
    """Returns a generation with tokens behind it that no model wrote."""
    return join_generations(before, make_certain(tokens))

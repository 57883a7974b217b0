"""Says until when thoughts may go on in a search with a limit of seconds, so that there is time left for answers."""

from __future__ import annotations

import sys
from collections.abc import Callable

_FIRST_PART = 64
"""Tokens of a thought that are asked for at once while the pace of the search is not known."""

_SHORTEST_PART = 16
"""Tokens that are asked for at least: the last ones before the limit would otherwise come one by one."""


class ThinkingTime:
    """The time that the thoughts of one search may take, from the pace of the search so far.

    What is kept for the answers is the *reserve*: twice the time that an answer of the longest allowed length, and the
    scoring of one step, took on average; at least a twentieth of the limit and at most a quarter, which it is while
    nothing is measured. The pace is that of one branch beside the others that run, waiting included.

    >>> time = ThinkingTime(100.0, deadline=lambda: 100.0, clock=lambda: 70.0)
    >>> time.find_deadline(answer_tokens=50)
    75.0
    >>> time.add_generation(20, seconds=2.0)
    >>> time.find_deadline(answer_tokens=50), time.count_affordable(answer_tokens=50)
    (90.0, 200)
    """

    def __init__(self, seconds: float, *, deadline: Callable[[], float], clock: Callable[[], float]) -> None:
        self._limit, self._read_deadline, self._clock = seconds, deadline, clock
        self._num_tokens = self._num_scored = 0
        self._writing_s = self._scoring_s = 0.0

    @property
    def has_expired(self) -> bool:
        """Whether the limit of the search itself is reached."""
        return self._clock() >= self._read_deadline()

    def add_generation(self, num_tokens: int, seconds: float) -> None:
        """Adds a request of a branch to the pace. *Mutates*."""
        self._num_tokens += num_tokens
        self._writing_s += seconds

    def add_scoring(self, seconds: float) -> None:
        """Adds the time that the score of a continuation took. *Mutates*."""
        self._num_scored += 1
        self._scoring_s += seconds

    def find_deadline(self, answer_tokens: int) -> float:
        """Returns the instant at which a thought is ended by force, so that its answer has the reserve."""
        return self._read_deadline() - self._reserve(answer_tokens)

    def is_over(self, answer_tokens: int) -> bool:
        """Returns whether less than one more token of a thought fits before its deadline."""
        return self._clock() + self._token_s >= self.find_deadline(answer_tokens)

    def count_affordable(self, answer_tokens: int) -> int:
        """Returns how many tokens of a thought are asked for at once.

        They fit before its deadline at the pace so far: what a server has written when a deadline comes may be lost.
        """
        if not self._token_s:
            return _FIRST_PART
        left = self.find_deadline(answer_tokens) - self._clock()
        return max(_SHORTEST_PART, int(min(left / self._token_s, sys.maxsize)))

    @property
    def _token_s(self) -> float:
        return self._writing_s / self._num_tokens if self._num_tokens else 0.0

    def _reserve(self, answer_tokens: int) -> float:
        if not self._num_tokens:
            return self._limit / 4
        scoring_s = self._scoring_s / self._num_scored if self._num_scored else 0.0
        needed = 2 * (answer_tokens * self._token_s + scoring_s)
        return min(max(needed, self._limit / 20), self._limit / 4)

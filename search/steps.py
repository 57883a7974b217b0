"""Splits generations into steps at token boundaries; a `StepRule` says where a step ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from decoding.core import StepOrigin, Tokens
from decoding.validation import require_count, require_text
from search.tree import Step

Decode = Callable[[Tokens], str]


@dataclass(frozen=True, kw_only=True)
class StepRule(ABC):
    """Decides where a step ends. A new rule is a file in `search/step_rules/` and a yaml in `conf/step/`.

    min_tokens  shortest step; an earlier end does not count

    Raises: ValueError naming the knob, its constraint and its value.
    """

    min_tokens: int = 0

    def __post_init__(self) -> None:
        require_count("step.min_tokens", self.min_tokens)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts at which an engine stops, because a step may end there."""
        return ()

    @property
    def max_tokens(self) -> int | None:
        """Tokens after which every step ends; None where `search.step_tokens` limits it."""
        return None

    @abstractmethod
    def find_end(self, tokens: Tokens, start: int, decode: Decode) -> int | None:
        """Returns the end (exclusive) of the step that begins at `start`; None if it is not complete in `tokens`.

        The end is after `start`, and at least `min_tokens` later.
        """


@dataclass(frozen=True, kw_only=True)
class DelimiterSteps(StepRule):
    r"""Ends a step with the token that completes `delimiter`, even if that token holds more text.

    >>> DelimiterSteps(delimiter="\n\n").find_end((97, 10, 10, 98), 0, lambda ids: bytes(ids).decode())
    3
    """

    delimiter: str = "\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_text("step.delimiter", self.delimiter)
        if not self.delimiter:
            raise ValueError("step.delimiter must not be empty")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """See `StepRule`."""
        return (self.delimiter,)

    def find_end(self, tokens: Tokens, start: int, decode: Decode) -> int | None:
        """See `StepRule`."""
        end = self._find_delimiter(tokens, start, decode)
        while end is not None and end - start < self.min_tokens:
            end = self._find_delimiter(tokens, end, decode)
        return end

    def _find_delimiter(self, tokens: Tokens, start: int, decode: Decode) -> int | None:
        """The smallest `end` such that `tokens[start:end]` holds the delimiter; None if none does.

        Doubles the window, then bisects it: the step is decoded a few times, not once per token.
        """
        low, width = start, 16
        while self.delimiter not in decode(tokens[start : start + width]):
            low = start + width
            if low >= len(tokens):
                return None
            width *= 2
        high = min(start + width, len(tokens))
        while high - low > 1:  # the delimiter is in tokens[start:high] and not in tokens[start:low]
            middle = (low + high) // 2
            if self.delimiter in decode(tokens[start:middle]):
                high = middle
            else:
                low = middle
        return high


def step_ends(tokens: Tokens, decode: Decode, rule: StepRule) -> list[int]:
    """Computes the end (exclusive) of each step; the last is `len(tokens)`, so each token is in exactly one step.

    Tokens after the last end are a step, unless they are blank: then they belong to the step before.

    >>> step_ends((97, 10, 10, 98, 10, 10, 32), lambda ids: bytes(ids).decode(), DelimiterSteps())
    [3, 7]
    """
    ends: list[int] = []
    start = 0
    while start < len(tokens):
        end = rule.find_end(tokens, start, decode)
        if end is None:
            if ends and not decode(tokens[start:]).strip():
                ends.pop()
            end = len(tokens)
        ends.append(end)
        start = end
    return ends


def split_steps(tokens: Tokens, logprobs: tuple[float, ...], decode: Decode, rule: StepRule) -> list[Step]:
    """Splits one generation into its steps, in order, each with its text and log-probabilities."""
    ranges = pairwise([0, *step_ends(tokens, decode, rule)])
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

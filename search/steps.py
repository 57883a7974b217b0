"""Splits generations into steps at token boundaries; a `StepRule` says where a step ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from decoding.core import Generation, StepOrigin, Tokens, Vector
from decoding.validation import require_count, require_text
from search.confidence import token_confidences
from search.tree import Step

Decode = Callable[[Tokens], str]

_SHORT_REST = 128  # tokens, as most steps have; then the end is found in two calls of `decode`


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

    @property
    def num_top(self) -> int:
        """`GenerationRequest.num_top` of generations whose entropies it reads; 0: it reads none."""
        return 0

    @property
    def ends_before_tokens(self) -> bool:
        """Whether a step ends before a token that was generated already, which is taken off again."""
        return False

    @property
    def stretch_tokens(self) -> int | None:
        """Tokens to generate before it is asked again; None: the engine stops where a step may end."""
        return None

    @abstractmethod
    def find_end(self, tokens: Tokens, start: int, decode: Decode, entropies: Vector | None = None) -> int | None:
        """Returns the end (exclusive) of the step that begins at `start`; None if it is not complete in `tokens`.

        The end is after `start`, and at least `min_tokens` later. `entropies` are those of `tokens`, in nats; None
        where the engine measured none.
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

    def find_end(self, tokens: Tokens, start: int, decode: Decode, entropies: Vector | None = None) -> int | None:
        """See `StepRule`."""
        end = self._find_delimiter(tokens, start, decode)
        while end is not None and end - start < self.min_tokens:
            end = self._find_delimiter(tokens, end, decode)
        return end

    def _find_delimiter(self, tokens: Tokens, start: int, decode: Decode) -> int | None:
        """The smallest `end` such that `tokens[start:end]` holds the delimiter; None if none does.

        Doubles the window, then bisects it: the step is decoded a few times, not once per token. An engine that
        stopped at the delimiter has it in the last token, so that place comes first, and a short rest is one window.
        """
        low, width = start, 16
        if len(tokens) - start <= _SHORT_REST:
            width = max(1, len(tokens) - start)
        while self.delimiter not in decode(tokens[start : start + width]):
            low = start + width
            if low >= len(tokens):
                return None
            width *= 2
        high = min(start + width, len(tokens))
        middle = high - 1 if high == len(tokens) else (low + high) // 2
        while high - low > 1:  # the delimiter is in tokens[start:high] and not in tokens[start:low]
            if self.delimiter in decode(tokens[start:middle]):
                high = middle
            else:
                low = middle
            middle = (low + high) // 2
        return high


def step_ends(tokens: Tokens, decode: Decode, rule: StepRule, entropies: Vector | None = None) -> list[int]:
    """Computes the end (exclusive) of each step; the last is `len(tokens)`, so each token is in exactly one step.

    Tokens after the last end are a step, unless they are blank: then they belong to the step before.

    >>> step_ends((97, 10, 10, 98, 10, 10, 32), lambda ids: bytes(ids).decode(), DelimiterSteps())
    [3, 7]
    """
    ends: list[int] = []
    start = 0
    while start < len(tokens):
        end = rule.find_end(tokens, start, decode, entropies)
        if end is None:
            if ends and not decode(tokens[start:]).strip():
                ends.pop()
            end = len(tokens)
        ends.append(end)
        start = end
    return ends


def split_steps(tokens: Tokens, logprobs: tuple[float, ...], decode: Decode, rule: StepRule) -> list[Step]:
    """Splits tokens into steps, in order, each with its text and log-probabilities."""
    return split_generation(Generation(tokens=tokens, logprobs=logprobs, finish="length"), decode, rule)


def split_generation(generation: Generation, decode: Decode, rule: StepRule) -> list[Step]:
    """Splits one generation into its steps, in order, each with its text and what was measured of its tokens."""
    ranges = pairwise([0, *step_ends(generation.tokens, decode, rule, generation.entropies)])
    return [make_step(generation, start, end, decode) for start, end in ranges]


def make_step(generation: Generation, start: int, end: int | None, decode: Decode) -> Step:
    """Returns the tokens from `start` to `end` (exclusive; None: the last one) as a step."""
    tokens, top, entropies = generation.tokens[start:end], generation.top_logprobs, generation.entropies
    return Step(
        tokens,
        decode(tokens),
        generation.logprobs[start:end],
        confidences=None if top is None else token_confidences(top[start:end]),
        entropies=None if entropies is None else entropies[start:end],
    )


def attribute_steps(steps: Sequence[Step], origins: Sequence[StepOrigin]) -> list[Step]:
    """Sets `model` and `routing_score` of each step to those of its last token; without origins nothing changes."""
    if not origins:
        return list(steps)
    end, attributed = 0, []
    for step in steps:
        end += len(step.tokens)
        # `origin.end` is exclusive, so the origin of token `end - 1` is the first that ends at `end` or later.
        origin = next((origin for origin in origins if origin.end >= end), None)
        attributed.append(step if origin is None else replace(step, model=origin.model, routing_score=origin.score))
    return attributed

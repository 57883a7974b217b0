"""The words of this layer: what goes into an engine and what comes out.

Everybody imports this module and it imports nobody, so it must stay free of torch.
Token ids are plain tuples of ints, log-probabilities natural logs, times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from decoding.validation import is_count

Tokens = tuple[int, ...]
Vector = npt.NDArray[np.float32]
FinishReason = Literal["stop", "eos", "length", "deadline"]


class OversizedRequest(ValueError):
    """The request could not fit the engine's KV pool (or the model's window) even if it ran alone."""


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to turn log-probabilities into tokens, and when to stop.

    `temperature=0` is greedy. `top_k=0`, `top_p=1` and `min_p=0` switch the filters off; they apply in
    that order, after temperature. A generation ends with the token that completes a `stop` string, a
    token of `stop_token_ids` or the model's end-of-sequence token; that token is part of the result.

    Raises: ValueError naming the field, what was wanted and what was got.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: Tokens = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            _require(_is_number(value), f"{name} must be a number, got {value!r}")
        _require(is_count(self.max_tokens, at_least=1), f"max_tokens must be an int >= 1, got {self.max_tokens!r}")
        _require(self.temperature >= 0, f"temperature must be >= 0, got {self.temperature!r}")
        _require(is_count(self.top_k), f"top_k must be an int >= 0 (0 = off), got {self.top_k!r}")
        _require(0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p!r}")
        _require(0 <= self.min_p <= 1, f"min_p must be in [0, 1], got {self.min_p!r}")
        _require(
            all(isinstance(s, str) and s for s in self.stop), f"stop must hold non-empty strings, got {self.stop!r}"
        )
        _require(all(map(is_count, self.stop_token_ids)), f"stop_token_ids must be ids, got {self.stop_token_ids!r}")


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One branch to continue.

    `seed` belongs to the branch, not to the parameters: siblings share a prefix and would otherwise be
    identical. `group` names what learns together (one group per problem: its branches share a draft
    table). `deadline` is a `time.monotonic()` instant after which the request ends with what it has. `hidden` asks for
    the model's last hidden state, from engines that can tell.
    """

    prefix: Tokens
    params: SamplingParams
    seed: int
    group: str = ""
    deadline: float | None = None
    hidden: bool = False

    def __post_init__(self) -> None:
        _require(len(self.prefix) > 0, "prefix must hold at least one token")


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What was used. Adds up: `a + b`; every result carries one.

    calls          requests sent to an engine
    tokens         tokens generated
    prompt_tokens  prefix tokens sent with those requests
    cached_tokens  of these, how many were found in the prefix cache
    forwards       target forward passes a branch took part in, summed over branches
    drafted        draft tokens fed to the target
    accepted       draft tokens kept
    round_seconds  its share of the rounds it took part in, those that filled prompts left out
    plain_seconds  what those rounds' tokens would have taken one by one, by the engine's cost curve; 0 if it has none
    draft_tokens   tokens a small model wrote for a large one, thrown away or not
    draft_forwards  that model's forward passes, which are not among `forwards`
    discarded_tokens  tokens written by either and thrown away; `tokens` are those that were kept
    scorer_calls   paths scored
    scored_tokens  tokens the scorer's model really ran
    seconds        wall clock, summed over what was added up
    """

    calls: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    round_seconds: float = 0.0
    plain_seconds: float = 0.0
    draft_tokens: int = 0
    draft_forwards: int = 0
    discarded_tokens: int = 0
    scorer_calls: int = 0
    scored_tokens: int = 0
    seconds: float = 0.0

    @property
    def target_tokens(self) -> int:
        """Tokens the large model wrote, thrown away or not; all of them where there is no other."""
        return self.tokens + self.discarded_tokens - self.draft_tokens

    @property
    def accepted_length(self) -> float | None:
        """Tokens per forward that chose any, the one that is not drafted included; None where nothing was generated.

        >>> Spent(tokens=12, accepted=8).accepted_length
        3.0
        """
        return self.tokens / (self.tokens - self.accepted) if self.tokens > self.accepted else None

    @property
    def speedup(self) -> float | None:
        """How many times faster than one token per forward it went, by the engine's cost curve; None without one."""
        return self.plain_seconds / self.round_seconds if self.plain_seconds and self.round_seconds else None

    def __add__(self, other: Spent) -> Spent:
        return Spent(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True)
class Authorship:
    """Who wrote the tokens up to `end` (exclusive, counted in its generation), and the number that was decided by."""

    end: int
    author: str
    score: float | None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What one request became.

    `logprobs` are the model's own (temperature 1, unfiltered) log-probabilities of `tokens`, one each; none at all
    from an engine that is not told any.
    The token that ended the generation is included, whatever it was. `hidden`, where it was asked for, is the
    model's last hidden state `[h]`, the one from which the last of these tokens was chosen.
    `authors` say who wrote what, where several models write.
    """

    tokens: Tokens
    logprobs: tuple[float, ...]
    finish: FinishReason
    spent: Spent = field(default_factory=Spent)
    hidden: Vector | None = field(default=None, compare=False, repr=False)
    authors: tuple[Authorship, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.logprobs) in (0, len(self.tokens)), (len(self.tokens), len(self.logprobs))


class Engine(Protocol):
    """Continues prefixes. Cancelling the call gives its pages back and drops its requests."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in order. Raises `OversizedRequest` before anything runs."""
        ...


class Reader(Protocol):
    """Runs a model over given tokens and returns its head's output; what a reward model is built from."""

    async def read(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[Any]:
        """Float32 array `[len(sequence) - start, outputs]` for each sequence: the head after each token
        from `start` on. Tokens before `start` are taken from the prefix cache where they are there."""
        ...

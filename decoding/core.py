"""The words of this layer: what goes into an engine, what comes out, and which parts may be swapped.

Everybody imports this module and it imports nobody, so it must stay free of torch.
Token ids are plain tuples of ints, log-probabilities natural logs, times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

Tokens = tuple[int, ...]
FinishReason = Literal["stop", "eos", "length", "deadline"]


class OversizedRequest(ValueError):
    """The request could not fit the engine's KV pool (or the model's window) even if it ran alone."""


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object, *, at_least: int = 0) -> bool:
    """True for an int (not a bool) of at least `at_least`: the check every integer knob needs."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


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
    table). `deadline` is a `time.monotonic()` instant after which the request ends with what it has.
    """

    prefix: Tokens
    params: SamplingParams
    seed: int
    group: str = ""
    deadline: float | None = None

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
    scorer_calls: int = 0
    scored_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What one request became.

    `logprobs` are the model's own (temperature 1, unfiltered) log-probabilities of `tokens`, one each.
    The token that ended the generation is included, whatever it was.
    """

    tokens: Tokens
    logprobs: tuple[float, ...]
    finish: FinishReason
    spent: Spent = field(default_factory=Spent)

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.logprobs), (len(self.tokens), len(self.logprobs))


@dataclass(frozen=True)
class Draft:
    """Guessed tokens as a tree: `parents[i] < i`, and -1 means "right after the committed tokens".

    The empty draft is legal and is plain decoding. Siblings must differ in token id.

    >>> Draft((5, 6, 9), (-1, 0, 0)).path_to(2)      # 5 then 9
    (0, 2)
    """

    tokens: Tokens = ()
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents)
        assert all(-1 <= p < i for i, p in enumerate(self.parents)), self.parents

    def __len__(self) -> int:
        return len(self.tokens)

    def path_to(self, node: int) -> tuple[int, ...]:
        """Node indices from the first level down to `node`, `node` included; empty for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return tuple(path[::-1])

    def within(self, *, nodes: int, depth: int) -> Draft:
        """Without what follows the first `nodes` nodes or lies deeper than `depth` (1 = children of the root)."""
        kept: dict[int, tuple[int, int]] = {-1: (-1, 0)}  # old index -> (new index, depth)
        for i, parent in enumerate(self.parents[:nodes]):
            if parent in kept and kept[parent][1] < depth:
                kept[i] = (len(kept) - 1, kept[parent][1] + 1)
        order = [i for i in kept if i >= 0]
        return Draft(tuple(self.tokens[i] for i in order), tuple(kept[self.parents[i]][0] for i in order))


@dataclass(frozen=True)
class Branch:
    """A running request as a drafter or controller sees it: everything committed so far."""

    request_id: int
    group: str
    tokens: Tokens
    seed: int
    params: SamplingParams


@dataclass(frozen=True)
class Load:
    """What the controller may weigh: branches running and waiting, and tokens of context they attend to."""

    running: int
    waiting: int
    context_tokens: int


@dataclass(frozen=True)
class Feedback:
    """What the target said about one branch in one round, for *every* fed row, rejected ones too.

    Row 0 is the last committed token, row `1 + i` is draft node `i`. `accepted` are the draft nodes kept,
    in path order. `topk_ids` and `topk_logprobs` are `[1 + len(draft), k]` arrays of the target's own
    (temperature 1) distribution after each row, or None when the drafter's `feedback_k` is 0.
    """

    branch: Branch
    draft: Draft
    accepted: tuple[int, ...]
    topk_ids: Any = None
    topk_logprobs: Any = None


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


class Drafter(Protocol):
    """Guesses what comes next. A guess may cost time but never changes the output."""

    @property
    def feedback_k(self) -> int:
        """How many of the target's top tokens `observe` wants for every row; 0 = none."""
        ...

    def propose(self, branches: Sequence[Branch], budgets: Sequence[int]) -> list[Draft]:
        """One draft per branch, of at most `budgets[i]` nodes."""
        ...

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Learn from a finished round. *Mutates* the drafter only."""
        ...


class Controller(Protocol):
    """Decides how many draft nodes each branch may feed this round."""

    def plan(self, branches: Sequence[Branch], load: Load) -> list[int]:
        """One budget per branch, each >= 0; zero is plain decoding."""
        ...

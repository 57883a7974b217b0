"""Defines the types that every engine, search and scorer shares: requests, generations, usage and two protocols.

All layers import this module; of the project it imports the engine's counters and the checks of settings only, and no
torch. Token ids are tuples of ints, log-probabilities natural logarithms, times seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from decoding.stats import EngineStats
from decoding.validation import MAX_TOKEN_ID, is_number, require_count, require_share, require_text, shorten

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-5, 100.0
"""Temperatures above 0: below, scaled logits overflow float32; above, every token is as likely as any other."""

MAX_STOPS = 1024
"""Stop strings and stop tokens of a request: each is compared with every generated token."""

MAX_NUM_TOP = 20
"""Most log-probabilities that a request may ask for at every token: what servers give."""

Tokens = tuple[int, ...]
Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]
HeadOutputs = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int32]
FinishReason = Literal["stop", "eos", "length", "deadline", "dropped"]
"""`dropped`: a search gave the generation up; engines end one for the other reasons."""


class OversizedRequest(ValueError):
    """A request that exceeds the engine's KV pool or the model's window even when it runs alone."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of sampling and stopping.

    `temperature=0` is greedy; others are from 1e-5 to 100. `top_k=0`, `top_p=1` and `min_p=0` switch the filters off;
    they apply in that order, after temperature. A generation ends with the token that completes a `stop` string, a
    token of `stop_token_ids` or the model's end-of-sequence token; that token is part of the result.

    Raises: ValueError with the field's name, its valid values and the value given.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: Tokens = ()

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            entries = getattr(self, name)
            if not isinstance(entries, list | tuple) or len(entries) > MAX_STOPS:
                raise ValueError(f"{name} must be a list of at most {MAX_STOPS}, got {shorten(entries)}")
            # YAML gives lists; tuples keep the parameters hashable
            object.__setattr__(self, name, tuple(entries))
        require_count("max_tokens", self.max_tokens, at_least=1)
        is_greedy = is_number(self.temperature, low=0, high=0)
        if not is_greedy and not is_number(self.temperature, low=MIN_TEMPERATURE, high=MAX_TEMPERATURE):
            valid = f"0 or in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
            raise ValueError(f"temperature must be {valid}, got {shorten(self.temperature)}")
        require_count("top_k", self.top_k, at_most=MAX_TOKEN_ID)
        require_share("top_p", self.top_p, above_zero=True)
        require_share("min_p", self.min_p)
        for text in self.stop:
            # an empty string would stop every generation at its first token
            if not (isinstance(text, str) and text):
                raise ValueError(f"stop must hold non-empty strings, got {shorten(self.stop)}")
        require_text("stop", self.stop)
        for i, token in enumerate(self.stop_token_ids):
            require_count(f"stop_token_ids.{i}", token, at_most=MAX_TOKEN_ID)


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A prefix to continue, with its sampling parameters.

    seed      seed of the branch; siblings share prefix and `params` and differ by it
    group     requests that share what drafters learn: one group per problem
    deadline  `time.monotonic()` instant after which the request ends with the tokens it has
    hidden    whether the generation carries the model's last hidden state, where the engine can give it
    num_top   how many of the most likely next tokens are measured at every token, and the entropy with them, where the
              engine can; 0 measures nothing
    names_top whether the generation also says which tokens these are, where the engine can
    question_length  tokens at the start of `prefix` whose KV is never evicted; None: all of it
    json_schema  text of a JSON schema that the generation is to match, from its first token; only servers take one
    on_tokens   is called with the new tokens of a round, on the engine's thread: it must return at once and raise
                nothing. Only the local engine calls it
    """

    prefix: Tokens
    params: SamplingParams
    seed: int
    group: str = ""
    deadline: float | None = None
    hidden: bool = False
    num_top: int = 0
    names_top: bool = False
    json_schema: str | None = None
    question_length: int | None = None
    on_tokens: Callable[[Sequence[int]], None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # the first token is sampled from the logits after the last prefix token
        if not self.prefix:
            raise ValueError("prefix must hold at least one token")
        require_count("question_length", self.question_length, at_least=1, at_most=len(self.prefix), or_null=True)
        require_count("num_top", self.num_top, at_most=MAX_NUM_TOP)

    def with_params(self, params: SamplingParams) -> GenerationRequest:
        """Returns the same request with other parameters; `replace` would check all fields again, in five times as
        long, and a search does this for each of its steps."""
        return self._with(params=params)

    def with_seed(self, seed: int) -> GenerationRequest:
        """Returns the same request with another seed, as fast."""
        return self._with(seed=seed)

    def _with(self, **changes: object) -> GenerationRequest:
        request = object.__new__(GenerationRequest)
        object.__setattr__(request, "__dict__", vars(self) | changes)
        return request


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Counts tokens, forward passes and seconds of one or more requests; `a + b` adds them field by field.

    calls             requests sent to an engine
    tokens            tokens generated
    prompt_tokens     prefix tokens sent with those requests
    cached_tokens     of these, tokens read from the prefix cache
    forwards          target forward passes in which a branch took part, summed over branches
    drafted           draft tokens fed to the target
    accepted          draft tokens accepted
    small_tokens      tokens that the small model generated, of a router, discarded ones included, or reading thoughts
    small_forwards    forward passes of that model; `forwards` does not include them
    discarded_tokens  tokens of either model that were discarded; `tokens` does not include them
    unused_tokens     of `tokens`, those that were thrown away behind the end of a step
    probes            interim answers of running thoughts; `tokens` and `calls` include what they took
    probe_tokens      tokens generated for them
    cancelled         requests taken back because the vote was decided without them; the tokens that they had generated
                      by then are counted by the engine alone, since they differ from run to run
    scorer_calls      paths scored
    scored_tokens     tokens that the scorer's model processed, cached ones excluded
    seconds           wall clock, summed over everything that was added
    """

    calls: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    small_tokens: int = 0
    small_forwards: int = 0
    discarded_tokens: int = 0
    unused_tokens: int = 0
    probes: int = 0
    probe_tokens: int = 0
    cancelled: int = 0
    scorer_calls: int = 0
    scored_tokens: int = 0
    seconds: float = 0.0

    @property
    def target_tokens(self) -> int:
        """Tokens of the target model, discarded ones included; all generated tokens where there is no small model."""
        # `small_tokens` includes discarded tokens, `tokens` does not
        return self.tokens + self.discarded_tokens - self.small_tokens

    @property
    def accepted_length(self) -> float | None:
        """Mean tokens per forward pass that chose a token, that token included; None where none was generated.

        >>> Usage(tokens=12, accepted=8).accepted_length
        3.0
        """
        # tokens - accepted: those that the target added to drafts, one per forward pass unless a stop cut the draft
        return self.tokens / (self.tokens - self.accepted) if self.tokens > self.accepted else None

    def __add__(self, other: Usage) -> Usage:
        # over all fields: a list of names would miss the next counter
        more = vars(other)
        return Usage(**{name: count + more[name] for name, count in vars(self).items()})


NO_USAGE = Usage()


@dataclass(frozen=True)
class StepOrigin:
    """Names the model that wrote the tokens of a generation up to `end` (exclusive), and the routing score."""

    end: int
    model: str
    score: float | None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The tokens generated for one request.

    tokens        include the token that ended the generation
    logprobs      the model's log-probability of each token (temperature 1, unfiltered); empty where an engine has none
    hidden        float32 `[h]`, the hidden state from which the last token was chosen; None where not requested
    origins       which model wrote which tokens, where several models generate
    top_logprobs  float32 `[tokens, num_top]`, log-probabilities of the most likely tokens at each position, best first,
                  as `logprobs` are; NaN behind the last one known, and at tokens that no model chose. None where not
                  requested, or an engine has none
    top_ids       int32 as `top_logprobs`, which tokens these are; -1 where they are NaN. None also without `names_top`
    entropies     float32 `[tokens]`, the entropy in nats of the distribution that `logprobs` are of; of servers the
                  part of the most likely tokens, a lower bound. None as above
    """

    tokens: Tokens
    logprobs: tuple[float, ...]
    finish: FinishReason
    usage: Usage = NO_USAGE
    # not compared: `==` of arrays is no bool, and their last bits may depend on the batch
    hidden: Vector | None = field(default=None, compare=False, repr=False)
    origins: tuple[StepOrigin, ...] = ()
    top_logprobs: Matrix | None = field(default=None, compare=False, repr=False)
    entropies: Vector | None = field(default=None, compare=False, repr=False)
    top_ids: TokenIds | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # none or all: a partial list would shift the log-probabilities of later tokens
        assert len(self.logprobs) in (0, len(self.tokens)), (len(self.tokens), len(self.logprobs))
        for rows in (self.top_logprobs, self.entropies, self.top_ids):
            assert rows is None or len(rows) == len(self.tokens), (len(self.tokens), len(rows))


class TokenGenerator(Protocol):
    """Generates tokens after prefixes: the part of an engine that a search uses."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Returns one generation per request, in order. Cancelling the call drops its requests and frees their KV.

        Raises: OversizedRequest or ValueError before any request runs.
        """
        ...


class Engine(TokenGenerator, Protocol):
    """Runs a language model, in this process or on servers, and is closed by the solver that owns it."""

    @property
    def stats(self) -> EngineStats:
        """A snapshot of the engine's counters; callable at any time."""
        ...

    def close(self) -> None:
        """Cancels requests in flight and frees model, KV and threads. Calling it twice is harmless."""
        ...

    def assert_invariants(self) -> None:
        """Asserts that the idle engine holds nothing for any request; waits until it is idle."""
        ...


class Reader(Protocol):
    """Runs a model over given tokens and returns the outputs of its head; reward models are built on it."""

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[HeadOutputs]:
        """Returns float32 `[len(sequence) - start, outputs]` per sequence: the head after each token from `start` on.

        Tokens before `start` are read from the prefix cache where it has them.
        """
        ...

"""Tracks one generation inside the engine: its tokens, its usage and what it needs to become a `Generation`."""

from __future__ import annotations

import time

from torch import Tensor

from decoding.core import FinishReason, Generation, GenerationRequest, Usage
from decoding.kv.sequence import TokenSequence
from decoding.speculation.interfaces import Branch


class Request(TokenSequence):
    """A `GenerationRequest` in the engine. The engine loop sets `arrival` when the request is submitted."""

    def __init__(self, submitted: GenerationRequest) -> None:
        super().__init__(-1, submitted.prefix)
        self.params = submitted.params
        self.seed, self.group, self.deadline = submitted.seed, submitted.group, submitted.deadline
        self.needs_hidden = submitted.hidden
        self.prompt_length = len(submitted.prefix)
        self.output_tokens: list[int] = []
        self.logprobs: list[float] = []
        self.num_cached_prompt: int | None = None  # prefix tokens read from the cache at the first admission
        self.forwards = self.drafted = self.accepted = 0
        self.submit_time = time.monotonic()
        self.hidden: Tensor | None = None  # [h], on the model's device

    @property
    def num_remaining(self) -> int:
        """Tokens it may still generate."""
        return self.params.max_tokens - len(self.output_tokens)

    def to_branch(self) -> Branch:
        """Returns the view that drafters and controllers get."""
        # a copy of the tokens: drafters may keep it while the request grows
        return Branch(self.arrival, self.group, tuple(self.tokens), self.seed, self.params, self.num_remaining)

    def commit_tokens(self, tokens: list[int], logprobs: list[float]) -> None:
        """Adds generated tokens. *Mutates*."""
        self.append_tokens(tokens)
        self.output_tokens += tokens
        self.logprobs += logprobs

    def to_generation(self, finish: FinishReason) -> Generation:
        """Returns the result; `seconds` of its usage end now."""
        usage = Usage(
            calls=1,
            tokens=len(self.output_tokens),
            prompt_tokens=self.prompt_length,
            cached_tokens=self.num_cached_prompt or 0,
            forwards=self.forwards,
            drafted=self.drafted,
            accepted=self.accepted,
            seconds=time.monotonic() - self.submit_time,
        )
        return Generation(
            tokens=tuple(self.output_tokens),
            logprobs=tuple(self.logprobs),
            finish=finish,
            usage=usage,
            hidden=None if self.hidden is None else self.hidden.float().cpu().numpy(),
        )

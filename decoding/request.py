"""A generation under way: a sequence that grows, what it has used, and the future its caller waits on."""

from __future__ import annotations

import time
from typing import Any

from decoding.core import FinishReason, Generation, GenerationRequest, Spent
from decoding.engine_loop import Task
from decoding.speculation.interfaces import Branch


class Job(Task[Generation]):
    """One `GenerationRequest` inside the engine."""

    def __init__(self, request: GenerationRequest) -> None:
        super().__init__(request.prefix)
        self.request = request
        self.generated: list[int] = []
        self.logprobs: list[float] = []
        self.cached: int | None = None  # prefix tokens found in the cache when first admitted
        self.forwards = self.drafted = self.accepted = 0
        self.round_seconds = self.plain_seconds = 0.0
        self.submitted = time.monotonic()
        self.hidden: Any = None  # a tensor [h], on the model's device

    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        return self.request.params.max_tokens - len(self.generated)

    def branch(self) -> Branch:
        """What drafters and controllers see of it."""
        r = self.request
        return Branch(self.arrival, r.group, tuple(self.tokens), r.seed, r.params, self.remaining)

    def commit(self, tokens: list[int], logprobs: list[float]) -> None:
        """Adds generated tokens. *Mutates*."""
        self.extend(tokens)
        self.generated += tokens
        self.logprobs += logprobs

    def finish(self, reason: FinishReason) -> None:
        """Hands the generation to whoever waits. The sequence must have left the scheduler."""
        spent = Spent(
            calls=1,
            tokens=len(self.generated),
            prompt_tokens=len(self.request.prefix),
            cached_tokens=self.cached or 0,
            forwards=self.forwards,
            drafted=self.drafted,
            accepted=self.accepted,
            round_seconds=self.round_seconds,
            plain_seconds=self.plain_seconds,
            seconds=time.monotonic() - self.submitted,
        )
        self.resolve(
            Generation(
                tokens=tuple(self.generated),
                logprobs=tuple(self.logprobs),
                finish=reason,
                spent=spent,
                hidden=None if self.hidden is None else self.hidden.float().cpu().numpy(),
            )
        )

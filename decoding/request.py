"""Tracks one generation inside the engine: its tokens, its usage and what it needs to become a `Generation`."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from decoding.core import FinishReason, Generation, GenerationRequest, Matrix, Usage, Vector
from decoding.kv.sequence import TokenSequence
from decoding.speculation.interfaces import Branch
from decoding.stopping import StopRule
from decoding.token_view import TokenView


class Request(TokenSequence):
    """A `GenerationRequest` in the engine. The engine loop sets `arrival` when the request is submitted."""

    def __init__(self, submitted: GenerationRequest) -> None:
        super().__init__(-1, submitted.prefix)
        self.params = submitted.params
        self.seed, self.group, self.deadline = submitted.seed, submitted.group, submitted.deadline
        self.needs_hidden, self.num_top = submitted.hidden, submitted.num_top
        self.prompt_length = len(submitted.prefix)
        self.output_tokens: list[int] = []
        self.logprobs: list[float] = []
        self._top_logprobs, self._entropies = array("f"), array("f")  # grow in place, four bytes a number
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
        view = TokenView(self.tokens)  # drafters may keep it while the request grows
        return Branch(self.arrival, self.group, view, self.seed, self.params, self.num_remaining)

    def commit_tokens(self, tokens: Sequence[int], logprobs: Sequence[float], rule: StopRule) -> FinishReason | None:
        """Adds tokens up to the end of the generation; returns its reason if one of them ends it. *Mutates*."""
        before = len(self.output_tokens)
        self.output_tokens += tokens
        length, reason = rule.find_end(self.output_tokens, len(tokens), self.params)
        del self.output_tokens[length:]
        self.append_tokens(tokens[: length - before])
        self.logprobs += logprobs[: length - before]
        return reason

    def add_uncertainty(self, top_logprobs: Matrix, entropies: Vector) -> None:
        """Adds the rows of the tokens just committed, `[new, num_top]` and `[new]`. *Mutates*."""
        self._top_logprobs.frombytes(top_logprobs.tobytes())
        self._entropies.frombytes(entropies.tobytes())

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
        top_logprobs = entropies = None
        if self.num_top:
            top_logprobs = np.frombuffer(self._top_logprobs, dtype=np.float32).reshape(-1, self.num_top)
            entropies = np.frombuffer(self._entropies, dtype=np.float32)
        return Generation(
            tokens=tuple(self.output_tokens),
            logprobs=tuple(self.logprobs),
            finish=finish,
            usage=usage,
            hidden=None if self.hidden is None else self.hidden.cpu().float().numpy(),
            top_logprobs=top_logprobs,
            entropies=entropies,
        )

"""Tracks one generation inside the engine: its tokens, its usage and what it needs to become a `Generation`."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from decoding.core import FinishReason, Generation, GenerationRequest, Matrix, Usage, Vector
from decoding.kv.eviction.branch import BranchEviction
from decoding.kv.eviction.history import Floats
from decoding.kv.eviction.policy import EvictionPolicy
from decoding.kv.sequence import TokenSequence
from decoding.speculation.interfaces import Branch
from decoding.stopping import StopRule
from decoding.token_view import TokenView


class Request(TokenSequence):
    """A `GenerationRequest` in the engine. The engine loop sets `arrival` when the request is submitted.

    eviction  the policy of its KV; None: all of it is kept
    """

    def __init__(self, submitted: GenerationRequest, eviction: EvictionPolicy | None = None) -> None:
        super().__init__(-1, submitted.prefix)
        self.params = submitted.params
        self.seed, self.group, self.deadline = submitted.seed, submitted.group, submitted.deadline
        self.on_tokens = submitted.on_tokens
        self.needs_hidden, self.num_top = submitted.hidden, submitted.num_top
        self.names_top = submitted.names_top
        self.prompt_length = len(submitted.prefix)
        question_length = submitted.question_length or self.prompt_length
        self.eviction = None if eviction is None else BranchEviction(eviction, question_length)
        self.output_tokens: list[int] = []
        self.logprobs: list[float] = []
        # grow in place, four bytes a number
        self._top_ids, self._top_logprobs, self._entropies = array("i"), array("f"), array("f")
        self.num_cached_prompt: int | None = None  # prefix tokens read from the cache at the first admission
        self.forwards = self.drafted = self.accepted = 0
        self.submit_time = time.monotonic()
        self.hidden: Tensor | None = None  # [h], on the model's device

    @property
    def num_remaining(self) -> int:
        """Tokens it may still generate."""
        return self.params.max_tokens - len(self.output_tokens)

    @property
    def max_cached(self) -> int:
        """See `TokenSequence`; no further than a prefix is whole for this request."""
        most = len(self.tokens) - 1
        return most if self.eviction is None else min(most, self.eviction.max_cached)

    @property
    def num_feedable(self) -> int:
        """See `TokenSequence`; up to the next border of eviction."""
        if self.eviction is None:
            return self.num_uncomputed
        return min(self.num_uncomputed, self.eviction.find_border(self.num_computed) - self.num_computed)

    @property
    def max_draft_depth(self) -> int:
        """Depth of a useful draft: the target adds a token of its own, and no node may be beyond a border."""
        depth = self.num_remaining - 1
        if self.eviction is None:
            return depth
        return min(depth, self.eviction.find_border(self.num_computed) - len(self.tokens))

    @property
    def can_insert(self) -> bool:
        """Whether the cache has less of the prompt than it can, now that this request has computed that."""
        whole = self.prompt_length
        if self.eviction is not None:
            whole = min(whole, self.eviction.max_cached)
        return self.num_cached < whole <= self.num_computed and not self.num_evicted

    def observe_attention(self, first: int, num_committed: int, path: Sequence[int], attention: Floats) -> None:
        """Records the attention of the tokens that a round has committed. *Mutates*.

        first          position of the first of them
        num_committed  of these, tokens that were committed before the round; then come the nodes of `path`
        attention      `[rows, keys]` of all tokens that were fed, draft nodes included, which are the last keys
        """
        if self.eviction is not None:
            num_rows, num_keys = attention.shape
            rows = [*range(num_committed), *(num_committed + node for node in path)]
            keys = [*range(num_keys - num_rows), *(num_keys - num_rows + row for row in rows)]
            self.eviction.observe_attention(first, attention[np.ix_(rows, keys)])

    def choose_kept(self) -> npt.NDArray[np.bool_] | None:
        """Returns which slots the request keeps, bool `[num_slots]`, where it evicts now; else None. *Mutates*."""
        if self.eviction is None or not self.eviction.is_border(self.num_computed):
            return None
        return self.eviction.choose_kept(self.tokens[: self.num_computed])

    def clear_slots(self) -> None:
        """See `TokenSequence`; what is computed again is evicted again, at the same borders."""
        super().clear_slots()
        if self.eviction is not None:
            self.eviction.clear()

    def to_branch(self) -> Branch:
        """Returns the view that drafters and controllers get."""
        view = TokenView(self.tokens)  # drafters may keep it while the request grows
        return Branch(self.arrival, self.group, view, self.seed, self.params, self.num_remaining)

    def commit_tokens(self, tokens: Sequence[int], logprobs: Sequence[float], rule: StopRule) -> FinishReason | None:
        """Adds tokens up to the end of the generation; returns its reason if one of them ends it. *Mutates*."""
        before = len(self.output_tokens)
        self.output_tokens += tokens
        length, reason = rule.find_end(self.output_tokens, len(tokens), self.params)
        if length < len(self.output_tokens):
            del self.output_tokens[length:]
            tokens, logprobs = tokens[: length - before], logprobs[: length - before]
        self.append_tokens(tokens)
        self.logprobs += logprobs
        if self.on_tokens is not None:
            self.on_tokens(self.output_tokens[before:])
        return reason

    def add_uncertainty(self, top_ids: npt.NDArray[np.int64], top_logprobs: Matrix, entropies: Vector) -> None:
        """Adds the rows of the tokens just committed, twice `[new, num_top]`, and `[new]`. *Mutates*."""
        if self.names_top:
            self._top_ids.frombytes(top_ids.astype(np.int32).tobytes())
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
        top_ids = top_logprobs = entropies = None
        if self.num_top:
            top_logprobs = np.frombuffer(self._top_logprobs, dtype=np.float32).reshape(-1, self.num_top)
            entropies = np.frombuffer(self._entropies, dtype=np.float32)
            if self.names_top:
                top_ids = np.frombuffer(self._top_ids, dtype=np.int32).reshape(-1, self.num_top)
        return Generation(
            tokens=tuple(self.output_tokens),
            logprobs=tuple(self.logprobs),
            finish=finish,
            usage=usage,
            hidden=None if self.hidden is None else self.hidden.cpu().float().numpy(),
            top_logprobs=top_logprobs,
            entropies=entropies,
            top_ids=top_ids,
        )

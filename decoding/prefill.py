"""Runs a model over given tokens and returns the head's output after each: the engine of reward models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.core import HeadOutputs, OversizedRequest, Tokens
from decoding.engine_loop import EngineLoop
from decoding.kv.kv_cache import KVCache
from decoding.kv.out_of_memory import MEMORY_ERRORS
from decoding.kv.pool_memory import open_pool
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import SlotPool, Slots
from decoding.model.backend import Backend
from decoding.model.batch import SequenceInput, pack_inputs
from decoding.model.device_stream import DeviceStream
from decoding.model.key_table import KeyTable
from decoding.scheduler import ScheduledSequence, Scheduler
from decoding.validation import require_token_ids

OutputReducer = Callable[[Tensor, Tensor], Tensor]
"""Reduces outputs of a head `[W, O]`, on their device, to `[W, k]`, given the ids `[W]` of the tokens that followed."""


class EncodeRequest(TokenSequence):
    """A sequence to run. Only the tokens before `start` may come from the cache: the others need an output.

    next_tokens  those that follow each token from `start` on; empty without a reducer
    """

    def __init__(self, tokens: Tokens, start: int, next_tokens: Tokens = ()) -> None:
        super().__init__(-1, tokens)
        self.start = start
        self.next_tokens = next_tokens
        self.outputs: HeadOutputs | None = None

    @property
    def max_cached(self) -> int:
        # [0, start) may be cached; the output after token `start` needs that token to be fed
        return self.start


class PrefillEngine:
    """Implements `core.Reader` over a backend, with its own KV pool and prefix cache.

    Calls from several coroutines are batched: all that wait run together, in one worker thread. Sequences
    that share a prefix compute it once, also when they arrive together. A pass for which there is no memory runs
    again in parts (see `decoding.kv.round_limit`).

    reducer            reduces the outputs before they are copied to the host; see `encode`
    reduced_rows       rows that it gets at a time: 512 of a vocabulary of 152 thousand take .3 GB
    processed_tokens   tokens fed so far by all calls, those read from the cache excluded
    """

    def __init__(
        self,
        backend: Backend,
        *,
        kv_bytes: int = 1 << 29,
        max_running_requests: int = 256,
        max_batched_tokens: int = 2048,
        reducer: OutputReducer | None = None,
        reduced_rows: int = 512,
    ) -> None:
        self._backend, self._reducer, self._reduced_rows = backend, reducer, reduced_rows
        self._kv = KVCache(SlotPool.from_budget(kv_bytes, backend.kv_bytes_per_token))
        self._pool: Tensor | None = open_pool(backend.new_kv_pool, self._kv.pool.capacity, backend.kv_bytes_per_token)
        self._key_table = KeyTable(self._kv.pool.capacity)
        self._scheduler: Scheduler[EncodeRequest] = Scheduler(
            self._kv,
            max_running_requests=max_running_requests,
            max_batched_tokens=max_batched_tokens,
            memory_advice="a smaller scorer.kv_mib leaves more memory for the rounds of the reward model",
        )
        self._loop: EngineLoop[EncodeRequest, HeadOutputs] = EngineLoop(
            self._scheduler, self._run_round, name="reader", stream=DeviceStream(backend, self._pool.device)
        )
        self.processed_tokens = 0

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[HeadOutputs]:
        """Returns float32 `[len(sequence) - start, outputs]` per sequence: the head after each token from `start` on.

        With a reducer it is what that makes, for each of these tokens, of the head's output before it and the token
        itself; then `start` is at least 1, and the last token is not fed.

        Raises: ValueError for a start outside these limits or an id outside the vocabulary; OversizedRequest for a
        sequence beyond the model's window or the pool; both before anything runs.
        """
        requests = []
        for tokens, start in zip(sequences, starts, strict=True):
            if self._reducer is None:
                self._validate_sequence(tokens, start)
                requests.append(EncodeRequest(tokens, start))
            else:
                self._validate_sequence(tokens[:-1], start - 1)
                require_token_ids(tokens[-1], tokens[-1], self._backend.vocab_size)
                requests.append(EncodeRequest(tokens[:-1], start - 1, tokens[start:]))
        return await self._loop.run_requests(requests)

    def close(self) -> None:
        """Cancels what is in flight, ends the worker thread and frees the KV pool. Calling it twice is harmless."""
        # first: a round in flight still writes to the pool
        self._loop.close()
        self._pool = None
        self._key_table.release()

    def assert_invariants(self) -> None:
        """Asserts every invariant of queue, cache and slots. Waits until nothing is in flight."""
        self._loop.call_when_idle(self._scheduler.assert_invariants)

    def _validate_sequence(self, tokens: Tokens, start: int) -> None:
        if not 0 <= start < len(tokens):
            raise ValueError(f"start must be within the {len(tokens)} tokens of its sequence, got {start}")
        require_token_ids(min(tokens), max(tokens), self._backend.vocab_size)
        size = f"a sequence of {len(tokens)} tokens exceeds"
        if len(tokens) > self._backend.max_positions:
            raise OversizedRequest(
                f"{size} the reward model's window of {self._backend.max_positions} tokens: lower sampling.max_tokens, "
                "or leave such paths without scores by scorer.max_tokens"
            )
        # a sequence must fit the pool alone: the scheduler relies on it
        if len(tokens) > self._kv.pool.capacity:
            raise OversizedRequest(
                f"{size} the reward model's KV pool of {self._kv.pool.capacity} tokens: raise scorer.kv_mib"
            )

    def _run_round(self) -> Iterator[tuple[EncodeRequest, HeadOutputs]]:
        """Runs one forward pass; yields each request that is complete, with its outputs."""
        self._scheduler.admit_waiting()
        scheduled = self._scheduler.schedule_round()
        while True:
            slots = self._kv.allocate(sum(part.num_tokens for part in scheduled))
            try:
                computed = self._run_model(self._place_parts(scheduled, slots))
                break
            except MEMORY_ERRORS as error:
                scheduled = self._scheduler.undo_round(scheduled, slots, 0, error)
        self._scheduler.limit.count_fitted()
        yield from self._store_outputs(*computed)

    @staticmethod
    def _place_parts(
        scheduled: Sequence[ScheduledSequence[EncodeRequest]], slots: Slots
    ) -> list[SequenceInput[EncodeRequest]]:
        at, inputs = 0, []
        for part in scheduled:
            request, end = part.sequence, at + part.num_tokens
            # [num_computed, start) fills the cache; outputs are needed from `start` on, as far as this round gets
            first_output = min(part.num_tokens, max(0, request.start - request.num_computed))
            inputs.append(SequenceInput(request, part.num_tokens, slots[at:end], first_output))
            at = end
        return inputs

    def _run_model(
        self, inputs: list[SequenceInput[EncodeRequest]]
    ) -> tuple[list[SequenceInput[EncodeRequest]], HeadOutputs | None]:
        """Returns the inputs in their packed order, and their outputs where any are needed."""
        batch, ordered = pack_inputs(inputs, self._backend, self._key_table)
        assert self._pool is not None, "the pool was released"
        hidden = self._backend.forward(batch, self._pool)
        outputs = self._reduce_outputs(hidden, ordered).cpu().numpy() if len(batch.logits_indices) else None
        self.processed_tokens += len(batch.tokens_T)
        return ordered, outputs

    def _reduce_outputs(self, hidden_WD: Tensor, inputs: Sequence[SequenceInput[EncodeRequest]]) -> Tensor:
        """Returns the outputs of a forward pass in float32, on their device."""
        if self._reducer is None:
            return self._backend.apply_head(hidden_WD).float()
        next_ids: list[int] = []
        for item in inputs:
            request = item.sequence
            first = request.num_computed + item.first_output - request.start
            next_ids += request.next_tokens[first : first + item.num_tokens - item.first_output]
        next_ids_W = torch.tensor(next_ids).to(hidden_WD.device)
        rows = self._reduced_rows
        parts = zip(torch.split(hidden_WD, rows), torch.split(next_ids_W, rows), strict=True)
        return torch.cat([self._reducer(self._backend.apply_head(hidden).float(), ids) for hidden, ids in parts])

    def _store_outputs(
        self, inputs: Sequence[SequenceInput[EncodeRequest]], outputs_WO: HeadOutputs | None
    ) -> Iterator[tuple[EncodeRequest, HeadOutputs]]:
        """Stores the outputs and the KV of a forward pass; yields the requests that are complete."""
        at = 0  # row of `outputs_WO`, which has the outputs of the inputs in their packed order
        for item in inputs:
            request, new = item.sequence, item.num_tokens - item.first_output
            if outputs_WO is not None and new:
                if request.outputs is None:
                    shape = (len(request.tokens) - request.start, outputs_WO.shape[1])
                    request.outputs = np.empty(shape, dtype=np.float32)
                # before `append_slots`: `num_computed` is still where this round began
                first = request.num_computed + item.first_output - request.start
                request.outputs[first : first + new] = outputs_WO[at : at + new]
                at += new
            request.append_slots(item.slots)
            if not request.num_uncomputed:
                assert request.outputs is not None
                # before the yield: a failure later in this round must not reach a complete request
                self._scheduler.remove_sequence(request)
                yield request, request.outputs

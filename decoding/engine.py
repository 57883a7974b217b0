"""The local engine: continuous batching of requests over one model, with a KV pool shared by prefix."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from decoding.core import Generation, GenerationRequest, OversizedRequest
from decoding.engine_loop import EngineLoop
from decoding.kv.eviction.policy import EvictionPolicy
from decoding.kv.kv_cache import KVCache
from decoding.kv.slots import SlotPool
from decoding.model.backend import Backend
from decoding.model.device_stream import DeviceStream
from decoding.request import Request
from decoding.round import RoundRunner, Speculation
from decoding.scheduler import Scheduler
from decoding.speculation.controllers.seconds_saved import find_seconds_saved
from decoding.speculation.interfaces import TrustsDrafter, is_trained
from decoding.stats import EngineStats
from decoding.stopping import Decode, StopRule
from decoding.validation import require_token_ids


class LocalEngine:
    """Implements `core.Engine` over a model in this process. May be called from any thread and several event loops.

    backend               the model
    decode                token ids to text, for stop strings
    eos_ids               tokens that end any generation
    kv_bytes              size of the KV pool
    max_running_requests  branches decoded together; the others wait
    max_batched_tokens    tokens fed per round: bounds the pause that a long prompt makes for others, and logits memory
    speculation           drafter, controller and acceptance; plain decoding by default
    eviction              which KV of a long text a branch keeps; all of it by default
    prepares_rounds       makes at once what rounds of a new size wait for, as CUDA graphs; for engines that live long

    Rounds run in one worker thread as long as there are requests; event loops stay free. A round for which there is no
    memory runs again, smaller (see `decoding.kv.round_limit`).
    """

    def __init__(
        self,
        backend: Backend,
        *,
        decode: Decode,
        eos_ids: Iterable[int] = (),
        kv_bytes: int = 1 << 30,
        max_running_requests: int = 256,
        max_batched_tokens: int = 1024,
        speculation: Speculation | None = None,
        eviction: EvictionPolicy | None = None,
        prepares_rounds: bool = False,
    ) -> None:
        records_attention = eviction is not None and eviction.needs_attention
        if records_attention and (backend.decoder_kind != "eager" or backend.segment_tiles is not None):
            raise ValueError("this eviction reads attention weights, which only decoder=eager attention=blocks has")
        if eviction is not None and backend.segment_tiles is not None and backend.segment_tiles.is_aligned:
            raise ValueError("an eviction leaves gaps between positions, and numerics=invariant splits keys at them")
        self._backend, self._eviction = backend, eviction
        self._kv = KVCache(SlotPool.from_budget(kv_bytes, backend.kv_bytes_per_token))
        self._scheduler: Scheduler[Request] = Scheduler(
            self._kv,
            max_running_requests=max_running_requests,
            max_batched_tokens=max_batched_tokens,
            memory_advice="a smaller engine.kv_mib leaves more memory for rounds, and smaller "
            "engine.max_batched_tokens and engine.max_running_requests make them smaller",
        )
        self._stats = EngineStats(capacity_tokens=self._kv.pool.capacity, decoder=backend.decoder_kind)
        self._speculation = speculation or Speculation()
        if is_trained(self._speculation.drafter) and isinstance(self._speculation.controller, TrustsDrafter):
            self._speculation.controller.trust_drafter()
        self._round = RoundRunner(
            backend,
            self._kv,
            self._scheduler,
            self._speculation,
            StopRule(decode, frozenset(eos_ids)),
            self._stats,
            records_attention=records_attention,
        )
        if prepares_rounds:
            has_drafts = self._speculation.has_drafts
            self._round.prepare_rounds(max_batched_tokens if has_drafts else max_running_requests)
        self._loop: EngineLoop[Request, Generation] = EngineLoop(
            self._scheduler, self._round.run_round, name="engine", stream=DeviceStream(backend, self._round.device)
        )

    @property
    def stats(self) -> EngineStats:
        """A snapshot; callable at any time. `running` and `waiting` are of now, not of the last round."""
        # two lengths read without a lock: each is exact, together they may be of two moments
        running, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        saved = find_seconds_saved(self._speculation.controller)
        return replace(self._stats.take_snapshot(), running=running, waiting=waiting, seconds_saved=saved)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Returns one generation per request, in order. Cancelling drops all of them at the end of the round.

        Raises: OversizedRequest or ValueError before any request runs; the error of a failed round in which they took
        part; RuntimeError when the engine is closed.
        """
        for request in requests:  # all of them first: none runs if one is invalid
            self._validate_request(request)
        return await self._loop.run_requests([Request(request, self._eviction) for request in requests])

    def close(self) -> None:
        """Cancels what is in flight, ends the worker thread and frees the KV pool. Calling it twice is harmless."""
        self._loop.close()  # first: a round in flight still writes to the pool
        self._round.release_pool()
        if self._speculation.saving is not None:
            self._speculation.saving.save_now(time.monotonic())

    def assert_invariants(self) -> None:
        """Asserts every invariant of queue, cache and slots. Waits until nothing is in flight."""
        self._loop.call_when_idle(self._assert_idle)

    def _assert_idle(self) -> None:
        assert not self._scheduler.running
        assert not self._scheduler.waiting
        self._scheduler.assert_invariants()
        # also a lock that outlived its request pins slots
        assert self._kv.num_pinned == 0, "an idle engine pins slots"

    def _validate_request(self, request: GenerationRequest) -> None:
        # int64: an id beyond int32 must be refused, not wrapped into the vocabulary
        ids = np.array(request.prefix, dtype=np.int64)
        require_token_ids(int(ids.min()), int(ids.max()), self._backend.vocab_size)
        # a request must fit alone at its full length: the scheduler relies on it
        total = len(request.prefix) + request.params.max_tokens
        size = f"{len(request.prefix)} prefix tokens + max_tokens={request.params.max_tokens} = {total} tokens"
        if total > self._backend.max_positions:
            window = self._backend.max_positions
            raise OversizedRequest(f"{size} exceed the model's window of {window} tokens: lower sampling.max_tokens")
        if total > self._kv.pool.capacity:
            raise OversizedRequest(
                f"{size} exceed the engine's KV pool of {self._kv.pool.capacity} tokens: raise engine.kv_mib"
            )

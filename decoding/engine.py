"""The local engine: continuous batching of requests over one model, on a KV pool shared by prefix."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from decoding.core import Generation, GenerationRequest, OversizedRequest
from decoding.engine_loop import Driver
from decoding.kv.kv_cache import SharedKV
from decoding.kv.slots import PagePool
from decoding.model.backend import Backend
from decoding.request import Job
from decoding.round import RoundLoop, Speculation
from decoding.scheduler import Scheduler
from decoding.stats import EngineStats
from decoding.stopping import Decode, StopRule
from decoding.validation import is_count


class LocalEngine:
    """Implements `core.Engine`. May be called from any thread and from several event loops.

    backend        the model
    decode         token ids to text, for stop strings
    eos_ids        tokens that end any generation
    kv_bytes       size of the KV pool
    max_running    branches decoded together; the others wait
    max_rows       tokens fed per round: bounds the pause a long prompt makes for those decoding, and logits memory
    speculation    drafter, controller and acceptance; plain decoding by default

    Rounds run in one worker thread for as long as there is work; event loops stay free.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        decode: Decode,
        eos_ids: Iterable[int] = (),
        kv_bytes: int = 1 << 30,
        max_running: int = 256,
        max_rows: int = 1024,
        speculation: Speculation | None = None,
    ) -> None:
        for name, value in (("max_running", max_running), ("max_rows", max_rows), ("kv_bytes", kv_bytes)):
            if not is_count(value, at_least=1):
                raise ValueError(f"{name} must be an int >= 1, got {value!r}")
        self._backend = backend
        self._kv = SharedKV(PagePool.of_bytes(kv_bytes, backend.page_bytes))
        self._scheduler: Scheduler[Job] = Scheduler(self._kv, max_running=max_running, max_rows=max_rows)
        self._stats = EngineStats(capacity_tokens=self._kv.pool.capacity)
        stop_rule, parts = StopRule(decode, frozenset(eos_ids)), speculation or Speculation()
        self._round = RoundLoop(backend, self._kv, self._scheduler, parts, stop_rule, self._stats)
        self._driver = Driver(self._scheduler, self._step, name="engine")

    @property
    def stats(self) -> EngineStats:
        """A snapshot; cheap, callable at any time. `running` and `waiting` are of now, not of the last round."""
        running, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        return replace(self._stats.snapshot(), running=running, waiting=waiting)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in order. Cancelling drops all of them at the end of the round.

        Raises: OversizedRequest or ValueError before anything runs; whatever broke a round they took part in;
        RuntimeError when the engine is closed.
        """
        for request in requests:
            self._validate(request)
        return await self._driver.run([Job(request) for request in requests])

    def close(self) -> None:
        """Cancels what is in flight, ends the worker thread and frees the KV pool. Calling it twice is harmless."""
        self._driver.close()
        self._round.release()

    def check(self) -> None:
        """Asserts every invariant of queue, cache and pages. Waits until nothing is in flight."""
        self._driver.call_idle(self._check_idle)

    def _check_idle(self) -> None:
        assert not self._scheduler.running
        assert not self._scheduler.waiting
        self._scheduler.check()
        assert self._kv.pinned == 0, "an idle engine pins pages"

    def _validate(self, request: GenerationRequest) -> None:
        ids = np.array(request.prefix, dtype=np.int64)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._backend.vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"token id {wrong} is outside the model's vocabulary of {self._backend.vocab_size}")
        total = len(request.prefix) + request.params.max_tokens
        asked = f"{len(request.prefix)} prefix tokens + max_tokens={request.params.max_tokens} = {total} tokens"
        if total > self._backend.max_positions:
            raise OversizedRequest(f"{asked} exceed the model's window of {self._backend.max_positions} tokens")
        if total > self._kv.pool.capacity:
            raise OversizedRequest(f"{asked} exceed the engine's KV pool of {self._kv.pool.capacity} tokens")

    def _step(self) -> None:
        self._end_late()
        for job in self._scheduler.admit():
            if job.cached is None:
                job.cached = job.resident
                self._stats.prompt_tokens += len(job.request.prefix)
                self._stats.cached_tokens += job.cached
        if not self._scheduler.running:
            return
        for job, reason in self._round.run():
            self._scheduler.leave(job, keep_kv=True)
            job.finish(reason)

    def _end_late(self) -> None:
        """Ends whatever is past its deadline with what it has."""
        now = time.monotonic()
        for job in (*self._scheduler.waiting, *self._scheduler.running):
            if job.request.deadline is not None and now >= job.request.deadline:
                self._scheduler.leave(job, keep_kv=True)
                job.finish("deadline")

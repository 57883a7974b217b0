"""Reads given tokens with a model: the head's output at every position asked for. What a reward model runs on."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.core import OversizedRequest, Tokens
from decoding.engine_loop import Driver, Task
from decoding.kv.kv_cache import SharedKV
from decoding.kv.shared_prefix import group_by_prefix
from decoding.kv.slots import PagePool
from decoding.model.backend import Backend
from decoding.model.batch import Feed, pack
from decoding.scheduler import Scheduler

Outputs = npt.NDArray[np.float32]


class Reading(Task[Outputs]):
    """A sequence being read. Only what comes before `start` may be taken from the cache: the rest must be run."""

    def __init__(self, tokens: Tokens, start: int) -> None:
        super().__init__(tokens)
        self.start = start
        self.outputs: Outputs | None = None

    @property
    def reusable(self) -> int:
        return self.start


class PrefixReader:
    """Implements `core.Reader` over a backend, with a KV pool and prefix cache of its own.

    Calls from several coroutines are batched: whatever waits runs together, in one worker thread. Sequences
    that share a prefix compute it once, also when they arrive together.

    tokens_run   tokens really fed so far, by all calls
    """

    def __init__(
        self, backend: Backend, *, kv_bytes: int = 1 << 29, max_running: int = 256, max_rows: int = 2048
    ) -> None:
        self._backend = backend
        self._kv = SharedKV(PagePool.of_bytes(kv_bytes, backend.page_bytes))
        self._pool = backend.new_pool(self._kv.pool.capacity)
        self._scheduler: Scheduler[Reading] = Scheduler(self._kv, max_running=max_running, max_rows=max_rows)
        self._driver = Driver(self._scheduler, self._step, name="reader")
        self.tokens_run = 0

    async def read(self, sequences: Items[Tokens], starts: Items[int]) -> list[Any]:
        """Float32 `[len(sequence) - start, outputs]` for each sequence: the head after each token from `start` on.

        Raises: ValueError for a start outside `[0, len)` or an id outside the vocabulary; OversizedRequest for a
        sequence beyond the model's window or the pool; both before anything runs.
        """
        for tokens, start in zip(sequences, starts, strict=True):
            self._validate(tokens, start)
        return await self._driver.run([Reading(tokens, start) for tokens, start in zip(sequences, starts, strict=True)])

    def close(self) -> None:
        """Cancels what is in flight, ends the worker thread and frees the KV pool. Calling it twice is harmless."""
        self._driver.close()
        self._pool = None

    def check(self) -> None:
        """Asserts every invariant of queue, cache and pages. Waits until nothing is in flight."""
        self._driver.call_idle(self._scheduler.check)

    def _validate(self, tokens: Tokens, start: int) -> None:
        if not 0 <= start < len(tokens):
            raise ValueError(f"start must be within the {len(tokens)} tokens of its sequence, got {start}")
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self._backend.vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"token id {wrong} is outside the model's vocabulary of {self._backend.vocab_size}")
        limit = min(self._backend.max_positions, self._kv.pool.capacity)
        if len(tokens) > limit:
            raise OversizedRequest(f"a sequence of {len(tokens)} tokens exceeds the reader's {limit}")

    def _step(self) -> None:
        self._scheduler.admit()
        turns = self._scheduler.turns()
        pages, at, feeds = self._kv.take(sum(turn.count for turn in turns)), 0, []
        for turn in turns:
            reading = turn.sequence
            wanted = min(turn.count, max(0, reading.start - reading.resident))
            feeds.append(Feed(reading, turn.count, pages[at : at + turn.count], wanted))
            at += turn.count
        batch, ordered = pack(feeds, group_by_prefix([feed.sequence for feed in feeds]))
        hidden = self._backend.forward(batch, self._pool)
        outputs = self._backend.head(hidden).float().cpu().numpy() if len(batch.wanted_W) else None
        self.tokens_run += len(batch.tokens_T)
        self._keep(ordered, outputs)

    def _keep(self, feeds: Items[Feed], outputs_WO: Outputs | None) -> None:
        """Stores the outputs and the KV of a forward pass, and ends the readings that are complete."""
        at = 0
        for feed in feeds:
            reading, new = feed.sequence, feed.rows - feed.wanted
            assert isinstance(reading, Reading)
            if outputs_WO is not None and new:
                if reading.outputs is None:
                    shape = (len(reading.tokens) - reading.start, outputs_WO.shape[1])
                    reading.outputs = np.empty(shape, dtype=np.float32)
                first = reading.resident + feed.wanted - reading.start
                reading.outputs[first : first + new] = outputs_WO[at : at + new]
                at += new
            reading.append_pages(feed.pages)
            if not reading.pending:
                assert reading.outputs is not None
                self._scheduler.leave(reading, keep_kv=True)
                reading.resolve(reading.outputs)

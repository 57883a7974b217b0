"""Counts what an engine has done since it was made."""

from __future__ import annotations

import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

Activity = Literal["model", "sampling", "drafting", "bookkeeping"]
DecoderKind = Literal["compiled", "eager"]
"""How the layers of a model run: in one compiled call, or operation by operation."""


class RoundSnapshot(NamedTuple):
    """State of the engine after one round: `time` is `time.monotonic()`, the rest are counts."""

    time: float
    running: int
    waiting: int
    resident_tokens: int


@dataclass
class EngineStats:
    """Counters since the engine was made; `Engine.stats` returns copies.

    rounds             forward passes of the target
    batched_tokens     tokens fed, prompt and draft tokens included
    tokens             tokens generated
    drafted, accepted  draft tokens fed and accepted
    prompt_tokens      prefix tokens of admitted requests
    cached_tokens      of these, tokens read from the prefix cache
    out_of_memory      rounds, or drafts of a round, for which there was no memory: they ran again, smaller
    evicted_by_branches  KV tokens that running branches evicted for themselves (`eviction=recent` and others)
    resident_tokens    KV tokens that the running branches hold now, shared ones counted once
    unshared_tokens    KV tokens that they would hold without sharing
    peak_*             the largest of either after any round
    resident_rounds    resident_tokens summed over all rounds
    problem_rounds     groups (problems) with running branches, summed over all rounds
    seconds_*          model (attention included), attention (eager on a CPU only), sampling, drafting, and the rest of
                       the loop. On CUDA the first and the third are the device's own time, while which the host drafts
                       and keeps books; so their sum may exceed `seconds_rounds`
    seconds_rounds     whole rounds, by the host's clock
    seconds_saved      by drafts: what plain rounds would have taken more, as the controller estimates it from those of
                       this engine; below 0 where drafts cost time, None without such a controller
    decoder            how the layers run, compiled or eager; None where a server runs the model
    timeline           the last 4096 rounds
    """

    rounds: int = 0
    batched_tokens: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    evicted_tokens: int = 0
    evicted_by_branches: int = 0
    out_of_memory: int = 0
    resident_tokens: int = 0
    unshared_tokens: int = 0
    peak_resident_tokens: int = 0
    peak_unshared_tokens: int = 0
    resident_rounds: int = 0
    problem_rounds: int = 0
    capacity_tokens: int = 0
    seconds_model: float = 0.0
    seconds_attention: float = 0.0
    seconds_sampling: float = 0.0
    seconds_drafting: float = 0.0
    seconds_bookkeeping: float = 0.0
    seconds_rounds: float = 0.0
    seconds_saved: float | None = None
    # bounded: a server may run for weeks
    decoder: DecoderKind | None = None
    timeline: deque[RoundSnapshot] = field(default_factory=lambda: deque(maxlen=4096))

    def take_snapshot(self) -> Self:
        """Returns a copy that later rounds do not change."""
        # the worker thread appends to the timeline while callers read their copy
        return replace(self, timeline=deque(self.timeline))

    def measure_seconds(self, activity: Activity) -> AbstractContextManager[None]:
        """Adds the duration of the `with` block to the seconds of `activity`, unless it raises. *Mutates*."""
        return _MeasuredBlock(self, activity)

    def add_seconds(self, activity: Activity, seconds: float) -> None:
        """Adds to the seconds of `activity`. *Mutates*."""
        match activity:
            case "model":
                self.seconds_model += seconds
            case "sampling":
                self.seconds_sampling += seconds
            case "drafting":
                self.seconds_drafting += seconds
            case "bookkeeping":
                self.seconds_bookkeeping += seconds

    @property
    def busy_seconds(self) -> float:
        """Time in rounds; for the rest of the wall clock the engine was idle."""
        return self.seconds_rounds

    def record_residency(self, now: RoundSnapshot, unshared: int, problems: int) -> None:
        """Records the KV that is held after a round. *Mutates*."""
        self.running, self.waiting = now.running, now.waiting
        self.resident_tokens, self.unshared_tokens = now.resident_tokens, unshared
        self.peak_resident_tokens = max(self.peak_resident_tokens, now.resident_tokens)
        self.peak_unshared_tokens = max(self.peak_unshared_tokens, unshared)
        self.resident_rounds += now.resident_tokens
        self.problem_rounds += problems
        self.timeline.append(now)


class _MeasuredBlock(AbstractContextManager[None]):
    """See `EngineStats.measure_seconds`. A class: of a generator eight a round take a twentieth of a small model's."""

    def __init__(self, stats: EngineStats, activity: Activity) -> None:
        self._stats, self._activity = stats, activity

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:  # the time of a failed round counts nowhere
            self._stats.add_seconds(self._activity, time.perf_counter() - self._begin)

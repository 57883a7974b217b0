"""Times what the host does in a round, phase by phase, with a model that costs nothing.

The rounds are those of `RoundRunner` over branches that already have long contexts. What a GPU would do (the model and
the sampling of tokens) is timed apart: the rest keeps a GPU waiting.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoding.core import SamplingParams
from decoding.device_arrays import copy_arrays
from decoding.model.backend import TokenBatch
from decoding.model.segment_attention import SegmentAttention, list_arrays, pick_tiles
from decoding.request import Request
from decoding.round import RoundRunner, Speculation
from decoding.scheduler import Scheduler
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch
from decoding.speculation.target_logits import TargetLogits
from decoding.stats import EngineStats
from decoding.validation import require_choice
from reason.bench.context_cost import FreeModel
from reason.bench.round_contexts import NO_STOP, BestOfNContexts, open_cache, place_requests

PHASES = ("scheduling", "drafting", "packing", "copying", "sampling", "commit", "observe")
DEVICE = "device"
"""The phase of what a GPU would do."""
_METHODS = {
    "_propose_drafts": "drafting",
    "_pack_inputs": "packing",
    "_compute_logits": "sampling",
    "_verify_drafts": "sampling",
    "_observe_round": "observe",
}
"""Phases of the runner's methods; the commit has a class of its own, and the rest of a round is scheduling."""
_META = torch.device("meta")
_PROMPT = 256
_GROWTH, _LEAST_GROWTH_MS = 1.5, 0.05


class PhaseClock:
    """Adds up seconds by phase. Phases nest: the time of an inner one does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    @contextmanager
    def measure_phase(self, phase: str) -> Iterator[None]:
        """Adds the duration of the `with` block, without the phases inside it. *Mutates*."""
        self._inner.append(0.0)
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.seconds[phase] += seconds - self._inner.pop()
        if self._inner:
            self._inner[-1] += seconds

    def wrap(self, function: Callable[..., object], phase: str) -> Callable[..., object]:
        """Returns the function, measured."""

        def measured(*args: object, **options: object) -> object:
            with self.measure_phase(phase):
                return function(*args, **options)

        return measured


class _ClockedModel(FreeModel):
    """A model whose calls count as the device's, after the arrays of a round were put into one for the copy to it."""

    def __init__(self, clock: PhaseClock, attention: str) -> None:
        super().__init__()
        self._clock = clock
        require_choice("attention", attention, ("blocks", "segments"))
        if attention == "segments":
            self.segment_tiles = pick_tiles(7, 128, torch.bfloat16)  # those of Qwen2.5 7B

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        with self._clock.measure_phase("copying"):
            plan = batch.segments
            plan_arrays = [] if plan is None else list_arrays(plan)
            tensors = copy_arrays(
                [batch.tokens_T, batch.positions_T, batch.slots_T, batch.logits_indices, *plan_arrays], _META
            )
            if plan is not None:
                SegmentAttention.from_plan(plan, tensors[4:], 1.0)
        with self._clock.measure_phase(DEVICE):
            return super().forward(batch, pool)

    def apply_head(self, hidden: Tensor) -> Tensor:
        with self._clock.measure_phase(DEVICE):
            return super().apply_head(hidden)


@dataclass(frozen=True)
class _ClockedCoupled(Coupled):
    """Coupled acceptance that counts the sampling of tokens as the device's."""

    clock: PhaseClock

    def verify_drafts(
        self, branches: Sequence[Branch], drafts: Sequence[Draft], target: TargetLogits
    ) -> list[VerifyResult]:
        with self.clock.measure_phase(DEVICE):
            _ = target.tokens  # computed once, with all that is copied from the device
        return super().verify_drafts(branches, drafts, target)


def measure_methods(runner: RoundRunner, clock: PhaseClock) -> None:
    """Replaces the methods of the phases by measured ones. *Mutates* the runner."""
    phases = [(runner, name, phase) for name, phase in _METHODS.items()]
    for owner, name, phase in [*phases, (runner.committer, "commit_results", "commit")]:
        setattr(owner, name, clock.wrap(getattr(owner, name), phase))


@dataclass(frozen=True)
class HostCost:
    """Milliseconds of a round by phase, medians, and what was measured."""

    speculation: str
    branches: int
    context: int
    rows: float
    phases: dict[str, float]
    device_ms: float

    @property
    def total_ms(self) -> float:
        """What the host does in a round."""
        return sum(self.phases.values())

    def to_json(self) -> dict[str, object]:
        """Returns all figures, rounded."""
        phases = {name: round(ms, 4) for name, ms in self.phases.items()}
        return {**vars(self), "phases": phases, "device_ms": round(self.device_ms, 4), "total_ms": self.total_ms}


def measure_host_rounds(
    name: str, speculation: Speculation, branches: int, context: int, *, rounds: int, warmup: int, attention: str
) -> HostCost:
    """Returns the medians over `rounds` rounds, after `warmup` others in which code is compiled and tables fill.

    The coupled rule replaces that of `speculation`: it is the one whose sampling can be told apart.
    """
    clock = PhaseClock()
    source = BestOfNContexts(
        branches, prompt=min(_PROMPT, context // 2), generated=context - min(_PROMPT, context // 2)
    )
    contexts = source.draw_contexts(np.random.default_rng(0))
    max_rows = 64 * branches
    kv = open_cache(contexts, max_rows * (rounds + warmup))
    requests = place_requests(contexts, kv, SamplingParams(max_tokens=context + max_rows * (rounds + warmup)))
    scheduler: Scheduler[Request] = Scheduler(kv, max_running_requests=branches, max_batched_tokens=max_rows)
    scheduler.running.extend(requests)
    stats = EngineStats()
    parts = Speculation(speculation.drafter, speculation.controller, _ClockedCoupled(clock))
    runner = RoundRunner(_ClockedModel(clock, attention), kv, scheduler, parts, NO_STOP, stats)
    measure_methods(runner, clock)
    seconds: dict[str, list[float]] = {phase: [] for phase in (*PHASES, DEVICE)}

    def run_round() -> None:
        with clock.measure_phase("scheduling"):
            ended = list(runner.run_round())
        assert not ended, "a branch ended while rounds were timed"

    with torch.inference_mode():
        for _ in range(warmup):
            run_round()
        rows_before = stats.batched_tokens
        for _ in range(rounds):
            clock.seconds.clear()
            run_round()
            for phase, values in seconds.items():
                values.append(1e3 * clock.seconds[phase])
    medians = {phase: float(np.median(values)) for phase, values in seconds.items()}
    device = medians.pop(DEVICE)
    return HostCost(name, branches, context, (stats.batched_tokens - rows_before) / rounds, medians, device)


def find_growth(costs: Sequence[HostCost]) -> dict[str, float]:
    """Returns the phases whose time grows with the context, and by which factor from the shortest to the longest."""
    first, last = min(costs, key=lambda cost: cost.context), max(costs, key=lambda cost: cost.context)
    return {
        phase: last.phases[phase] / max(first.phases[phase], 1e-9)
        for phase in PHASES
        if last.phases[phase] > max(_GROWTH * first.phases[phase], first.phases[phase] + _LEAST_GROWTH_MS)
    }

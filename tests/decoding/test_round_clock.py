"""The seconds of a round are those of the work: on a pretended GPU, whose every operation takes a millisecond."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from decoding.core import GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.model.backend import Backend, TokenBatch
from decoding.round import Speculation
from decoding.round_clock import RoundClock
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.interfaces import RoundCost
from decoding.stats import EngineStats
from tests.support.fakes import HashBackend
from tests.support.pretended_gpu import PretendedGpu
from tests.support.pretended_streams import OPERATION_MS
from tests.support.random_models import open_gpu_backend

CUDA = torch.device("cuda:0")


@dataclass
class DeviceMeter:
    """Counts the milliseconds of the device within calls of functions."""

    gpu: PretendedGpu
    milliseconds: float = 0.0

    def measure(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, measured."""

        def run(*args: Any, **options: Any) -> Any:
            before = self.gpu.streams.current.clock_ms
            result = function(*args, **options)
            self.milliseconds += self.gpu.streams.current.clock_ms - before
            return result

        return run


@dataclass(frozen=True)
class CostRecorder(FixedController):
    """Records the cost of every round."""

    costs: list[RoundCost | None] = field(default_factory=list)

    def observe(self, feedback: object, cost: RoundCost | None) -> None:
        self.costs.append(cost)


def test_work_counts_when_the_device_has_done_it(gpu: PretendedGpu) -> None:
    stats = EngineStats()
    clock = RoundClock(stats, CUDA)
    there = torch.zeros(3, device="cuda")
    with clock.measure_device("model"):
        there = there + 1 + 2
    clock.add_passed()
    assert stats.seconds_model == 0.0
    there.cpu()
    with clock.measure_device("sampling"):
        there = there * 2
    clock.add_passed()
    assert (stats.seconds_model, stats.seconds_sampling) == (2e-3 * OPERATION_MS, 0.0)
    clock.add_all()
    assert (stats.seconds_model, stats.seconds_sampling) == (2e-3 * OPERATION_MS, 1e-3 * OPERATION_MS)


def test_work_that_fails_counts_nowhere(gpu: PretendedGpu) -> None:
    stats = EngineStats()
    clock = RoundClock(stats, CUDA)
    with pytest.raises(ValueError, match="none"), clock.measure_device("model"):
        raise ValueError("none")
    clock.add_all()
    assert stats.seconds_model == 0.0


def test_model_and_sampling_of_an_engine_are_the_devices_own_time(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, model, sampling = open_gpu_backend(), DeviceMeter(gpu), DeviceMeter(gpu)
    for name in ("forward", "apply_head"):
        monkeypatch.setattr(backend, name, model.measure(getattr(backend, name)))
    monkeypatch.setattr(Coupled, "verify_drafts", sampling.measure(Coupled.verify_drafts))
    requests = [GenerationRequest(prefix=(1, 2, 3), params=SamplingParams(max_tokens=n), seed=n) for n in (3, 9)]
    with closing(LocalEngine(backend, decode=str, kv_bytes=1 << 18)) as engine:
        asyncio.run(engine.generate(requests))
        stats = engine.stats
    assert 1e3 * stats.seconds_model == pytest.approx(model.milliseconds)
    assert 1e3 * stats.seconds_sampling == pytest.approx(sampling.milliseconds)
    assert 0 < stats.seconds_bookkeeping < stats.busy_seconds


def test_no_wait_is_added_but_at_the_end(gpu: PretendedGpu) -> None:
    request = GenerationRequest(prefix=(1, 2, 3), params=SamplingParams(max_tokens=8), seed=1)
    with closing(LocalEngine(open_gpu_backend(), decode=str, kv_bytes=1 << 18)) as engine:
        asyncio.run(engine.generate([request]))
        engine.assert_invariants()
        # and one when the loop is idle
        assert gpu.streams.waits == gpu.copies_to_host + 2


@pytest.mark.parametrize("length", [17, 18])
def test_a_round_behind_an_unfinished_one_tells_nothing_of_its_cost(gpu: PretendedGpu, length: int) -> None:
    """A round that only fills a prompt waits for nothing. The next one does, and may look like plain decoding."""
    costs = measure_costs(open_gpu_backend(), length)
    assert [cost is None for cost in costs] == [True, False, False]


def test_on_a_cpu_every_round_of_single_tokens_tells_its_cost() -> None:
    costs = measure_costs(HashBackend(), 17)
    assert [cost is None for cost in costs] == [False, False, False]


def measure_costs(backend: Backend, length: int) -> list[RoundCost | None]:
    """The costs of the rounds of a prompt that is filled in parts of sixteen tokens, and of two more."""
    recorder = CostRecorder()
    speculation = Speculation(controller=recorder)
    request = GenerationRequest(prefix=(1,) * length, params=SamplingParams(max_tokens=3), seed=1)
    with closing(
        LocalEngine(backend, decode=str, kv_bytes=1 << 18, max_batched_tokens=16, speculation=speculation)
    ) as engine:
        asyncio.run(engine.generate([request]))
    return recorder.costs


class SlowBackend(HashBackend):
    """A model beside whose forward pass the rest of a round is short, on a busy machine too."""

    def forward(self, batch: TokenBatch, pool: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return super().forward(batch, pool)


def test_parts_of_a_cpus_round_are_its_time() -> None:
    request = GenerationRequest(prefix=(1, 2, 3), params=SamplingParams(max_tokens=20), seed=1)
    with closing(LocalEngine(SlowBackend(), decode=str, kv_bytes=1 << 18)) as engine:
        asyncio.run(engine.generate([request]))
        stats = engine.stats
    parts = stats.seconds_model, stats.seconds_sampling, stats.seconds_drafting, stats.seconds_bookkeeping
    assert min(parts) > 0
    assert 0.5 * stats.busy_seconds < sum(parts) <= stats.busy_seconds

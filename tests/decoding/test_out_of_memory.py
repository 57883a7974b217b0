"""Rounds for which there is no memory run again, smaller: no branch is lost and no token differs."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest
from decoding.kv.out_of_memory import OutOfMemory, is_out_of_memory
from decoding.kv.round_limit import ROUNDS_TO_RISE, RoundLimit
from decoding.model.backend import TokenBatch
from decoding.prefill import PrefillEngine
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.speculation.target_logits import TargetLogits
from decoding.stats import EngineStats
from decoding.validation import MAX_VALUE
from tests.support.engines import make_request, mixed_requests, open_engine
from tests.support.fakes import HashBackend
from tests.support.scarce_memory import HasMemory, ScarceBackend, ScarceDrafter, ScarceRule, refuse

NODES = 4


@dataclass(frozen=True)
class RecordingController(FixedController):
    """Takes as many nodes as `FixedController`, and records what it is told."""

    plans: list[BatchLoad] = field(default_factory=list)
    observed: list[Feedback] = field(default_factory=list)
    costs: list[RoundCost | None] = field(default_factory=list)

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        self.plans.append(load)
        return super().plan_drafts(branches, load)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        self.observed.extend(feedback)
        self.costs.append(cost)


def branches_of(count: int) -> list[GenerationRequest]:
    """Requests of several problems, some of which want log-probabilities of the most likely tokens."""
    return [replace(request, num_top=3 * (i % 2)) for i, request in enumerate(mixed_requests(count))]


@cache
def expected_of(count: int) -> list[Generation]:
    """What an engine gives that never runs out of memory."""
    with open_engine(HashBackend()) as engine:
        return asyncio.run(engine.generate(branches_of(count)))


def assert_same(got: Sequence[Generation], expected: Sequence[Generation]) -> None:
    assert [(g.tokens, g.finish) for g in got] == [(g.tokens, g.finish) for g in expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        assert (one.top_logprobs is None) == (other.top_logprobs is None)
        if one.top_logprobs is not None and other.top_logprobs is not None:
            np.testing.assert_allclose(one.top_logprobs, other.top_logprobs, atol=1e-5)


def draft_parts(acceptance: ScarceRule | None = None) -> tuple[Speculation, ScarceDrafter, RecordingController]:
    """A drafter that is nearly always right, and what is told of the outcomes."""
    drafter = ScarceDrafter(TreeDrafter(DraftModel(HashBackend(), k=6, kv_bytes=3000)), lambda call, size: True)
    controller = RecordingController(NODES)
    return Speculation(drafter, controller, acceptance or ScarceRule()), drafter, controller


chosen_calls = st.sets(st.integers(1, 60), max_size=25)


@settings(max_examples=40, deadline=None)
@given(
    failing=st.fixed_dictionaries({"forward": chosen_calls, "head": chosen_calls, "rule": chosen_calls}),
    room=st.integers(1, 40),
    shrinks_at=st.integers(0, 60),
    has_drafts=st.booleans(),
    knobs=st.fixed_dictionaries(
        {},
        optional={
            "max_batched_tokens": st.integers(1, 50),
            "num_slots": st.sampled_from([75, 150]),
            "max_running_requests": st.integers(1, 8),
        },
    ),
)
def test_no_branch_is_lost_and_no_token_differs(
    failing: dict[str, set[int]], room: int, shrinks_at: int, has_drafts: bool, knobs: dict[str, Any]
) -> None:
    """Chosen calls have memory for one token alone; from call `shrinks_at` on all have it for `room` tokens."""

    def has_memory(part: str) -> HasMemory:
        return lambda call, size: size == 1 or (call not in failing[part] and (call < shrinks_at or size <= room))

    backend = ScarceBackend(has_memory("forward"), in_head=has_memory("head"))
    rule = ScarceRule(lambda call, size: size == 1 or call not in failing["rule"])
    parts, drafter, controller = draft_parts(rule)
    if not has_drafts:
        parts = replace(parts, drafter=Speculation().drafter)
    with open_engine(backend, speculation=parts, **knobs) as engine:
        done = asyncio.run(engine.generate(branches_of(8)))
        # `open_engine` asserts that the pool is as it should be, and that nothing is held
        engine.assert_invariants()
        stats = engine.stats
    assert_same(done, expected_of(8))
    assert stats.rounds + stats.out_of_memory == len(backend.sizes)
    assert_told_of_rounds_that_fitted(stats, controller)
    if has_drafts:
        assert drafter.observed == controller.observed[: len(drafter.observed)]
        assert len(controller.observed) - len(drafter.observed) <= len(done)  # of the last round


def assert_told_of_rounds_that_fitted(stats: EngineStats, controller: RecordingController) -> None:
    assert len(controller.plans) == stats.rounds
    assert sum(len(outcome.draft) for outcome in controller.observed) == stats.drafted
    assert sum(len(outcome.accepted_nodes) for outcome in controller.observed) >= stats.accepted
    # each failure was in a round of which no cost is told; a round may fail more than once
    assert sum(cost is None for cost in controller.costs) <= stats.out_of_memory + stats.rounds


def test_drafts_are_halved_first_then_tokens() -> None:
    """Five branches decode one token each with four draft nodes each."""
    failures = 0

    def has_memory(call: int, size: int) -> bool:
        nonlocal failures
        # every size fails once the branches decode: the whole way down
        failures += 1 < size <= 5 * (1 + NODES)
        return not 1 < size <= 5 * (1 + NODES)

    backend = ScarceBackend(has_memory)
    parts, _, controller = draft_parts()
    requests = [make_request((7, 1, 2, 3, 4, 5, 6, 7, 8, 9, *range(20)), s, max_tokens=12) for s in range(5)]
    with open_engine(backend, speculation=parts) as engine:
        done = asyncio.run(engine.generate(requests))
        stats = engine.stats
    with open_engine(HashBackend()) as engine:
        assert_same(done, asyncio.run(engine.generate(requests)))
    first = next(i for i, size in enumerate(backend.sizes) if size == 5 * (1 + NODES))
    assert backend.sizes[first : first + 8] == [25, 15, 10, 7, 6, 5, 2, 1]
    assert stats.out_of_memory == failures
    assert controller.costs.count(None) >= 1


def test_error_of_the_least_round_names_the_settings_and_the_engine_stays_usable() -> None:
    backend = ScarceBackend(lambda call, size: call > 30)
    request = make_request((1, 2, 3), max_tokens=5)
    with open_engine(backend) as engine:
        for _ in range(2):
            with pytest.raises(OutOfMemory, match=r"engine\.kv_mib.*engine\.max_batched_tokens"):
                asyncio.run(engine.generate([request, replace(request, seed=1)]))
            engine.assert_invariants()
            backend.sizes += [0] * 20
        done = asyncio.run(engine.generate([request]))
    with open_engine(HashBackend()) as engine:
        assert_same(done, asyncio.run(engine.generate([request])))


def test_other_errors_are_not_taken_for_it() -> None:
    backend = HashBackend()
    backend.fail_at = 2
    with open_engine(backend) as engine:
        with pytest.raises(RuntimeError, match="the toy broke"):
            asyncio.run(engine.generate([make_request((1, 2, 3), max_tokens=5)]))
        assert engine.stats.out_of_memory == 0


def test_it_is_said_once_with_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), open_engine(ScarceBackend(lambda call, size: size < 9)) as engine:
        asyncio.run(engine.generate(branches_of(8)))
    (warning,) = caplog.messages
    assert "engine.kv_mib" in warning


def test_uncertainty_that_finds_no_memory_is_measured_in_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, measure = 0, TargetLogits.measure_rows

    def measure_or_fail(target: TargetLogits, rows: Sequence[int], num_top: int) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2 and len(target.logits_WV) > 1:
            refuse()
        return measure(target, rows, num_top)

    expected = expected_of(8)
    monkeypatch.setattr(TargetLogits, "measure_rows", measure_or_fail)
    with open_engine(HashBackend()) as engine:
        assert_same(asyncio.run(engine.generate(branches_of(8))), expected)
        assert engine.stats.out_of_memory > 0


@pytest.mark.parametrize("kind", ["engine", "reader"])
def test_what_a_failed_attempt_computed_is_gone_before_the_next_one(kind: str) -> None:
    """Else the device would have even less memory for it."""
    computed: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    class Watched(HashBackend):
        def forward(self, batch: TokenBatch, pool: torch.Tensor) -> torch.Tensor:
            alive.append(sum(one() is not None for one in computed))
            computed.clear()
            return super().forward(batch, pool)

        def apply_head(self, hidden: torch.Tensor) -> torch.Tensor:
            logits = super().apply_head(hidden)
            computed.extend((weakref.ref(hidden), weakref.ref(logits)))
            if kind == "reader" and len(hidden) > 2:
                refuse()
            return logits

    gc.collect()
    gc.disable()
    try:
        if kind == "reader":
            with closing(PrefillEngine(Watched(), kv_bytes=200)) as reader:
                asyncio.run(reader.encode([tuple(range(20))], [0]))
        else:
            parts = Speculation(acceptance=ScarceRule(lambda call, size: size <= 2))
            with open_engine(Watched(), speculation=parts) as engine:
                asyncio.run(engine.generate([make_request((1, 2, 3), seed, max_tokens=3) for seed in range(9)]))
                assert engine.stats.out_of_memory > 0
    finally:
        gc.enable()
    assert len(alive) > 5
    assert not any(alive)


def test_drafter_without_memory_is_left_out_for_a_round() -> None:
    parts, drafter, _ = draft_parts()
    drafter.has_memory = lambda call, size: call % 3 == 0
    with open_engine(HashBackend(), speculation=parts) as engine:
        assert_same(asyncio.run(engine.generate(branches_of(8))), expected_of(8))
        assert engine.stats.out_of_memory > 0
        assert engine.stats.accepted > 0


def test_draft_model_runs_smaller_passes_after_one_that_did_not_fit() -> None:
    backend = ScarceBackend(lambda call, size: size <= 6)
    source = DraftModel(backend, k=6, kv_bytes=3000)
    parts = Speculation(TreeDrafter(source), FixedController(NODES))
    with open_engine(HashBackend(), speculation=parts) as engine:
        assert_same(asyncio.run(engine.generate(branches_of(8))), expected_of(8))
        assert 0 < engine.stats.out_of_memory < 10
        assert engine.stats.accepted > 0
    assert max(backend.sizes) > 6 >= max(backend.sizes[20:])
    source.assert_invariants()


@settings(max_examples=25, deadline=None)
@given(calls=chosen_calls, room=st.integers(1, 60), max_batched_tokens=st.integers(4, 80))
def test_reward_pass_runs_again_in_parts(calls: set[int], room: int, max_batched_tokens: int) -> None:
    sequences = [(*range(12), seed % 3, *range(seed)) for seed in range(9)]
    starts = [seed % 7 for seed in range(9)]

    def encode(backend: HashBackend) -> list[Any]:
        reader = PrefillEngine(backend, kv_bytes=120, max_batched_tokens=max_batched_tokens)
        with closing(reader):
            outputs = asyncio.run(reader.encode(sequences, starts))
            reader.assert_invariants()
            return outputs

    scarce = ScarceBackend(lambda call, size: size == 1 or (call not in calls and size <= room))
    for one, other in zip(encode(scarce), encode(HashBackend()), strict=True):
        assert np.array_equal(one, other)


def test_reward_pass_of_one_token_that_does_not_fit_names_the_setting() -> None:
    with closing(PrefillEngine(ScarceBackend(lambda call, size: False), kv_bytes=100)) as reader:
        with pytest.raises(OutOfMemory, match=r"scorer\.kv_mib"):
            asyncio.run(reader.encode([(1, 2, 3)], [0]))
        reader.assert_invariants()


def test_bound_rises_after_rounds_that_fitted_and_falls_again() -> None:
    limit = RoundLimit("a smaller pool leaves more")
    for _ in range(2 * ROUNDS_TO_RISE):
        limit.count_fitted()
    assert limit.tokens == MAX_VALUE
    limit.shrink(100, 30, MemoryError())
    assert limit.tokens == 85
    limit.shrink(85, 15, MemoryError())
    limit.shrink(77, 0, MemoryError())
    assert limit.tokens == 38
    for _ in range(ROUNDS_TO_RISE - 1):
        limit.count_fitted()
    assert limit.tokens == 38
    limit.count_fitted()
    assert limit.tokens == 42
    for _ in range(ROUNDS_TO_RISE * 200):
        limit.count_fitted()
    assert limit.tokens == MAX_VALUE
    with pytest.raises(OutOfMemory, match="a smaller pool"):
        limit.shrink(1, 0, MemoryError())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
    ids=str,
)
def test_errors_of_all_libraries_are_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError(str(error)))
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))

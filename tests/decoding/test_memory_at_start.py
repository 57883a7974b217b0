"""A start on a device with little memory: pools, timed rounds and weights that do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import reason
from decoding.engine import LocalEngine
from decoding.kv.out_of_memory import OutOfMemory
from decoding.model.compiled_decoder import CompiledDecoder
from decoding.prefill import PrefillEngine
from decoding.speculation.controllers.cost_curve import CostCurve
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.warmup_profile import profile_rounds
from reason.config.errors import ConfigError
from reason.models import plain_checkpoint
from tests.support.engines import TOKENIZER, make_request
from tests.support.fakes import HashBackend
from tests.support.scarce_memory import ScarceBackend, refuse

BUNDLED = ("model=bundled", "scorer=none", "search=self_consistency", "speculation=off")


class SmallDevice(HashBackend):
    """Has memory for pools of up to 1000 tokens."""

    kv_bytes_per_token = 1 << 20

    def new_kv_pool(self, capacity: int) -> Tensor:
        if capacity > 1000:
            refuse()
        return super().new_kv_pool(capacity)


@pytest.mark.parametrize("kind", [partial(LocalEngine, decode=TOKENIZER.decode), PrefillEngine, DraftModel])
def test_pool_that_does_not_fit_is_named_with_its_size(kind: Callable[..., object]) -> None:
    with pytest.raises(OutOfMemory, match=r"^kv_mib: .* pool of 2000 MiB \(1999 tokens\)"):
        kind(SmallDevice(), kv_bytes=2000 << 20)


@pytest.fixture
def small_pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of pools that were tried; there is memory for 5000 tokens."""
    tried: list[int] = []
    make = CompiledDecoder.new_kv_pool

    def make_if_small(decoder: CompiledDecoder, capacity: int) -> Tensor:
        tried.append(capacity)
        if capacity > 5000:
            refuse()
        return make(decoder, capacity)

    monkeypatch.setattr(CompiledDecoder, "new_kv_pool", make_if_small)
    return tried


def test_pool_of_automatic_size_is_halved_until_it_fits(small_pools: list[int]) -> None:
    with reason.load(*BUNDLED) as solver:
        assert 2500 <= solver.engine.stats.capacity_tokens <= 5000
    # without the small pools of the start: one token, and the rounds that compile loops
    tried = [capacity for capacity in small_pools if capacity >= 2500]
    assert len(tried) > 1
    assert all(abs(2 * after - before) <= 2 for before, after in pairwise(tried))


def test_pool_for_which_there_is_no_memory_at_all_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object) -> None:
        raise OutOfMemory("kv_mib: there is no memory for a KV pool")

    monkeypatch.setattr("decoding.round.open_pool", run_out)
    with pytest.raises(ConfigError, match=r"^engine\.kv_mib: there is no memory"):
        reason.load(*BUNDLED)


def test_pool_of_a_given_size_that_does_not_fit_is_refused_by_name(small_pools: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"^engine\.kv_mib: there is no memory for a KV pool of 512 MiB"):
        reason.load(*BUNDLED, "engine.kv_mib=512")


def test_weights_that_do_not_fit_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object, **__: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(plain_checkpoint, "load_plain_model", run_out)
    with pytest.raises(ConfigError, match=r"^engine\.device=auto has no memory for the weights of .*dtype=bfloat16"):
        reason.load(*BUNDLED)


def test_reward_model_that_does_not_fit_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object) -> None:
        raise OutOfMemory("kv_mib: there is no memory for a KV pool of 512 MiB")

    monkeypatch.setattr("decoding.prefill.open_pool", run_out)
    with pytest.raises(
        ConfigError, match=r"^scorer.*kv_mib=512 and the weights of .*; set a smaller kv_mib or device=cpu"
    ):
        reason.load("model=bundled", "scorer=prm", "scorer.kv_mib=512", "speculation=off")


def test_rounds_that_do_not_fit_are_left_out_of_the_timed_ones() -> None:
    costs = profile_rounds(ScarceBackend(lambda call, size: size <= 40))
    assert max(cost.num_tokens for cost in costs) in range(33, 41)
    assert CostCurve(tuple(costs)).round_seconds(8, 8, 500) > 0
    with pytest.raises(OutOfMemory, match="a round of one token"):
        profile_rounds(ScarceBackend(lambda call, size: False))


def test_engine_works_after_a_start_on_a_small_device() -> None:
    with closing(LocalEngine(SmallDevice(), decode=TOKENIZER.decode, kv_bytes=900 << 20)) as engine:
        (done,) = asyncio.run(engine.generate([make_request((1, 2), max_tokens=9)]))
    assert len(done.tokens) == 9

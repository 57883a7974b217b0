"""Samples n branches of one prompt with the local engine and with two functions of transformers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.model.transformers_checkpoint import HFBackend
from decoding.scheduler import HEADROOM_SLOTS
from decoding.stats import EngineStats

if TYPE_CHECKING:
    from transformers import GenerationConfig

TransformersModel = Any  # a causal language model of transformers, which has no types


@dataclass(frozen=True)
class BranchWorkload:
    """n branches of one prompt, each sampled for `new` tokens at temperature 1, unfiltered, never stopping early."""

    prompt: Tokens
    new: int
    branches: int

    @property
    def tokens(self) -> int:
        return self.new * self.branches


@dataclass(frozen=True)
class BaselineRun:
    """Seconds for one workload; a run of the local engine has its statistics too."""

    seconds: float
    stats: EngineStats | None = None


def open_cold_engine(backend: HFBackend, workload: BranchWorkload) -> LocalEngine:
    """Returns a local engine with room for the workload, a new KV pool and an empty prefix cache."""
    # without the headroom the last branches would wait for the others
    room = 2 * len(workload.prompt) + workload.branches * (2 * workload.new + HEADROOM_SLOTS) + 64
    return LocalEngine(
        backend,
        decode=lambda tokens: "",
        kv_bytes=room * backend.kv_bytes_per_token,
        max_running_requests=workload.branches,
        max_batched_tokens=max(1024, workload.branches),
        prepares_rounds=True,
    )


def make_requests(workload: BranchWorkload, temperature: float = 1.0) -> list[GenerationRequest]:
    """Returns a request per branch."""
    params = SamplingParams(max_tokens=workload.new, temperature=temperature)
    return [GenerationRequest(prefix=workload.prompt, params=params, seed=seed) for seed in range(workload.branches)]


def run_ours(backend: HFBackend, workload: BranchWorkload) -> BaselineRun:
    """Runs the local engine, cold: see `open_cold_engine`, which is not timed."""
    engine, requests = open_cold_engine(backend, workload), make_requests(workload)
    begin = time.perf_counter()
    generations = asyncio.run(engine.generate(requests))
    seconds = time.perf_counter() - begin
    assert sum(len(generation.tokens) for generation in generations) == workload.tokens
    stats = engine.stats
    engine.close()
    return BaselineRun(seconds, stats)


def make_generation_config(workload: BranchWorkload) -> GenerationConfig:
    """Returns the settings of transformers with which it samples the branches of a workload."""
    from transformers import GenerationConfig

    return GenerationConfig(
        max_new_tokens=workload.new, min_new_tokens=workload.new, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def transformers_generate(model: TransformersModel, workload: BranchWorkload) -> BaselineRun:
    """`model.generate` with a batch of equal rows and its default (dynamic) cache."""
    import torch

    ids = torch.tensor([workload.prompt] * workload.branches, device=model.device)
    begin = time.perf_counter()
    done = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=make_generation_config(workload))
    _synchronize(model)
    seconds = time.perf_counter() - begin
    assert done.shape == (workload.branches, len(workload.prompt) + workload.new)
    return BaselineRun(seconds)


def transformers_continuous(model: TransformersModel, workload: BranchWorkload) -> BaselineRun:
    """`model.generate_batch`, its continuous batching, with a cache just large enough; set-up is part of the time."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    settings = make_generation_config(workload)
    settings.min_new_tokens = None
    settings.eos_token_id = -1  # it must have one; this id is never sampled
    blocks = workload.branches * ((len(workload.prompt) + workload.new) // 256 + 2)
    begin = time.perf_counter()
    done = model.generate_batch(
        [list(workload.prompt)] * workload.branches,
        generation_config=settings,
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=1024),
        progress_bar=False,
        warmup=False,
    )
    _synchronize(model)
    seconds = time.perf_counter() - begin
    lengths = [len(output.generated_tokens) for output in done.values()]
    if lengths != [workload.new] * workload.branches:
        raise RuntimeError(f"generate_batch returned {sum(lengths)} tokens for {workload.tokens}")
    return BaselineRun(seconds)


def _synchronize(model: TransformersModel) -> None:
    import torch

    if model.device.type == "cuda":
        torch.cuda.synchronize()


def make_baselines(model: TransformersModel, backend: HFBackend) -> dict[str, Callable[[BranchWorkload], BaselineRun]]:
    """Returns a function per name that runs a workload: `ours`, and the baselines."""
    return {
        "ours": lambda workload: run_ours(backend, workload),
        "generate": lambda workload: transformers_generate(model, workload),
        "generate_batch": lambda workload: transformers_continuous(model, workload),
    }

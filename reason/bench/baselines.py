"""Ways to sample n branches of one prompt with the same weights: ours and transformers' two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.model.transformers_checkpoint import HFBackend
from decoding.stats import EngineStats


@dataclass(frozen=True)
class Workload:
    """n branches of one prompt, each sampled for `new` tokens at temperature 1, unfiltered, never stopping early."""

    prompt: Tokens
    new: int
    branches: int

    @property
    def tokens(self) -> int:
        return self.new * self.branches


@dataclass(frozen=True)
class Run:
    """Seconds one contestant took for one workload; ours comes with the engine's own account."""

    seconds: float
    stats: EngineStats | None = None


def ours(backend: HFBackend, work: Workload) -> Run:
    """Our engine, cold: a fresh pool and an empty prefix cache."""
    room = 2 * (len(work.prompt) + work.branches * work.new) + 64
    engine = LocalEngine(backend, decode=lambda tokens: "", kv_bytes=room * backend.page_bytes)
    params = SamplingParams(max_tokens=work.new, temperature=1.0)
    requests = [GenerationRequest(prefix=work.prompt, params=params, seed=seed) for seed in range(work.branches)]
    begin = time.perf_counter()
    done = asyncio.run(engine.generate(requests))
    seconds = time.perf_counter() - begin
    assert sum(len(generation.tokens) for generation in done) == work.tokens
    stats = engine.stats
    engine.close()
    return Run(seconds, stats)


def _settings(work: Workload) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        max_new_tokens=work.new, min_new_tokens=work.new, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def transformers_generate(model: Any, work: Workload) -> Run:
    """`model.generate` with a batch of equal rows and its default (dynamic) cache."""
    import torch

    ids = torch.tensor([work.prompt] * work.branches, device=model.device)
    begin = time.perf_counter()
    done = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=_settings(work))
    _wait(model)
    seconds = time.perf_counter() - begin
    assert done.shape == (work.branches, len(work.prompt) + work.new)
    return Run(seconds)


def transformers_continuous(model: Any, work: Workload) -> Run:
    """`model.generate_batch`, its continuous batching, with a cache just large enough; set-up is part of the time."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    settings = _settings(work)
    settings.min_new_tokens = None
    settings.eos_token_id = -1  # it insists on one; this one never comes
    blocks = work.branches * ((len(work.prompt) + work.new) // 256 + 2)
    begin = time.perf_counter()
    done = model.generate_batch(
        [list(work.prompt)] * work.branches,
        generation_config=settings,
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=1024),
        progress_bar=False,
        warmup=False,
    )
    _wait(model)
    seconds = time.perf_counter() - begin
    made = [len(output.generated_tokens) for output in done.values()]
    if made != [work.new] * work.branches:
        raise RuntimeError(f"generate_batch returned {sum(made)} tokens for {work.tokens}")
    return Run(seconds)


def _wait(model: Any) -> None:
    import torch

    if model.device.type == "cuda":
        torch.cuda.synchronize()


def contestants(model: Any, backend: HFBackend) -> dict[str, Callable[[Workload], Run]]:
    """Name -> how to run it."""
    return {
        "ours": lambda work: ours(backend, work),
        "generate": lambda work: transformers_generate(model, work),
        "generate_batch": lambda work: transformers_continuous(model, work),
    }

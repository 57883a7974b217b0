"""Part b4: how fast a reward model of 7B reads paths, by their length and number."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import numpy as np
import torch

from decoding.core import Tokens
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from reason.bench.gpu_report.rig import NO_TIME, ReportRig, measure_ceilings
from reason.bench.gpu_report.steady import count_layer_weights
from reason.bench.puppet import find_shape

LEAST_SHARE = 0.6
"""Of the measured rate of matrix products, where a pass is full."""
_FULL_TOKENS = 8192


def measure_reading(rig: ReportRig) -> None:
    """Adds a line per length and number of paths that share a prompt, each read once, with a score of every token."""
    name = rig.pick("qwen2.5-7b", "miniature")
    reader, num_weights = _make_reader(rig, name)
    for length in rig.pick((512, 2048, 4096), (24,)):
        for count in rig.pick((1, 8, 32), (2,)):
            title = f"{name} as a reward model, {count} paths of {length} tokens"
            if rig.has_seconds(rig.pick(12, 0)):
                _measure(rig, title, reader, num_weights, length, count)
            else:
                rig.add_skipped(title, NO_TIME)


def _make_reader(rig: ReportRig, name: str) -> tuple[HFBackend, int]:
    """Returns a random body with a head of two classes, and the weights that a token is multiplied with."""
    shape = find_shape(name)
    head = torch.randn(shape.hidden_size, 2, device=rig.device).to(rig.dtype)
    backend = HFBackend(
        shape.make_model(rig.device, rig.dtype).model,
        head=lambda hidden: hidden @ head,
        device=str(rig.device),
        dtype=str(rig.dtype).removeprefix("torch."),
        frees_model=True,
    )
    return backend, count_layer_weights(shape)


def _measure(rig: ReportRig, title: str, reader: HFBackend, num_weights: int, length: int, count: int) -> None:
    engine = PrefillEngine(
        reader,
        kv_bytes=(2 * length * count + 64) * reader.kv_bytes_per_token,
        max_batched_tokens=rig.pick(2048, 64),
    )
    rng = np.random.default_rng(0)
    seconds, read = [], 0
    try:
        for _ in range(rig.pick(3, 1)):
            # new texts every time: nothing of them is in the cache
            prompt = tuple(rng.integers(1, 250, length // 4).tolist())
            paths: list[Tokens] = [
                (*prompt, *rng.integers(1, 250, length - len(prompt)).tolist()) for _ in range(count)
            ]
            before, begin = engine.processed_tokens, time.perf_counter()
            asyncio.run(engine.encode(paths, [len(prompt)] * count))
            seconds.append(time.perf_counter() - begin)
            read = engine.processed_tokens - before
    finally:
        engine.close()
    # the last ones: the first pass of a size compiles
    rate = read / median(seconds[-2:])
    share = 2 * num_weights * rate / measure_ceilings(rig).peak
    value = f"{rate:,.0f} tokens/s, {share:.0%} of the measured rate of products"
    if read < _FULL_TOKENS:
        rig.add_figure(title, value, tokens_per_s=rate, share=share)
    else:
        rig.add_device_check(
            title, value, share >= LEAST_SHARE, f"at least {LEAST_SHARE:.0%}", tokens_per_s=rate, share=share
        )

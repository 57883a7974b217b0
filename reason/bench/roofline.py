"""The roofline of this machine: bytes over measured bandwidth, and matrix products at their measured rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import TransformersModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def median_seconds(function: Callable[[], object], *, device: torch.device, seconds: float = 0.3) -> float:
    """Returns the median seconds of a call, over as many calls as fit in `seconds` (at least 5)."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def measure_bandwidth(size_bytes: int, device: torch.device) -> float:
    """Returns the bytes per second of reading a buffer of this size repeatedly."""
    buffer = torch.ones(max(size_bytes // 4, 1024), device=device)
    return buffer.numel() * 4 / median_seconds(buffer.sum, device=device)


@dataclass(frozen=True)
class Roofline:
    """The minimum seconds of one decoding round, and their parts."""

    products_s: float
    memory_s: float
    flops: float
    bytes_read: int

    @property
    def seconds(self) -> float:
        """A round takes at least as long as its products and as its memory reads."""
        return max(self.products_s, self.memory_s)


def measure_roofline(
    config: PretrainedConfig,
    *,
    branches: int,
    prompt: int,
    private: int,
    dtype: torch.dtype,
    device: torch.device,
    head_rows: int | None = None,
) -> Roofline:
    """Measures the roofline of one round of `branches` rows with `prompt` shared and on average `private` own keys.

    Products are timed at the shapes of the model, with weights in the caches; the products of attention are counted at
    the rate of the others. Bytes are weights once, shared K and V once, private K and V once each.

    head_rows  rows that need logits; None: all
    """
    hidden, layers, mlp = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes = [
        (layers, branches, hidden, queries + 2 * keys),
        (layers, branches, queries, hidden),
        (layers, branches, hidden, 2 * mlp),
        (layers, branches, mlp, hidden),
        (1, branches if head_rows is None else head_rows, hidden, config.vocab_size),
    ]
    seconds, flops, weights = 0.0, 0.0, 0
    for times, inputs, rows, columns in shapes:
        x = torch.randn(inputs, rows, device=device, dtype=dtype)
        w = torch.randn(columns, rows, device=device, dtype=dtype)
        with torch.inference_mode():
            seconds += times * median_seconds(lambda x=x, w=w: F.linear(x, w), device=device, seconds=0.1)  # type: ignore[misc]
        flops += times * 2.0 * inputs * rows * columns
        weights += times * rows * columns
    attention = layers * 4.0 * branches * queries * (prompt + private)
    seconds *= 1 + attention / flops
    kv = layers * 2 * keys * (prompt + branches * private)
    size = (weights + kv) * dtype.itemsize
    return Roofline(seconds, size / measure_bandwidth(size, device), flops + attention, size)


def module_cost(
    model: TransformersModel, backend: HFBackend, rows: int, *, pairs: int = 200
) -> tuple[float, float, float]:
    """Returns the time of transformers' modules over that of our fused stack: quartiles (25, 50, 75 %).

    Both compute the same rows, attention over one key each. The ratios are of calls made back to back: on a busy
    machine two medians taken one after the other differ by more than what is measured.
    """
    import numpy as np

    from decoding.kv.sequence import TokenSequence
    from decoding.model.batch import SequenceInput, pack_inputs

    ids = torch.zeros(rows, 1, dtype=torch.long, device=model.device)
    inputs = [SequenceInput(TokenSequence(row, (0,)), 1, np.array([row + 1]), 0) for row in range(rows)]
    batch, _ = pack_inputs(inputs, backend)
    pool = backend.new_kv_pool(rows)

    def seconds(function: Callable[[], object]) -> float:
        begin = time.perf_counter()
        function()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    ratios = []
    with torch.inference_mode():
        for pair in range(pairs + 10):
            calls = [lambda: model(ids, use_cache=False), lambda: backend.apply_head(backend.forward(batch, pool))]
            order = (0, 1) if pair % 2 else (1, 0)  # alternate, so that neither side always runs first
            times = {side: seconds(calls[side]) for side in order}
            if pair >= 10:
                ratios.append(times[0] / times[1])
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)

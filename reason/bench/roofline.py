"""What this machine could do at best: bytes over measured bandwidth, and matrix products at their measured rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


def fastest(function: Callable[[], Any], *, device: torch.device, seconds: float = 0.3) -> float:
    """Median seconds of a call, over as many calls as fit in `seconds` (at least 5)."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def bandwidth(size_bytes: int, device: torch.device) -> float:
    """Bytes per second when reading a buffer of this size again and again."""
    buffer = torch.ones(max(size_bytes // 4, 1024), device=device)
    return buffer.numel() * 4 / fastest(buffer.sum, device=device)


@dataclass(frozen=True)
class Ceiling:
    """The least seconds one decoding round could take, and what they are made of."""

    products_s: float
    memory_s: float
    flops: float
    bytes_read: int

    @property
    def seconds(self) -> float:
        """A round can be faster than neither."""
        return max(self.products_s, self.memory_s)


def ceiling(
    config: Any, *, branches: int, prompt: int, private: int, dtype: torch.dtype, device: torch.device
) -> Ceiling:
    """For one round of `branches` rows with `prompt` shared keys and `private` keys each on average.

    Products are timed at the very shapes of the model, weights hot; attention's products are counted at the
    rate of the others. Bytes are weights once, shared K and V once, private K and V once each.
    """
    hidden, layers, mlp = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes = [
        (layers, hidden, queries + 2 * keys),
        (layers, queries, hidden),
        (layers, hidden, 2 * mlp),
        (layers, mlp, hidden),
        (1, hidden, config.vocab_size),
    ]
    seconds, flops, weights = 0.0, 0.0, 0
    for times, rows, columns in shapes:
        x = torch.randn(branches, rows, device=device, dtype=dtype)
        w = torch.randn(columns, rows, device=device, dtype=dtype)
        with torch.inference_mode():
            seconds += times * fastest(lambda x=x, w=w: F.linear(x, w), device=device, seconds=0.1)  # type: ignore[misc]
        flops += times * 2.0 * branches * rows * columns
        weights += times * rows * columns
    attention = layers * 4.0 * branches * queries * (prompt + private)
    seconds *= 1 + attention / flops
    kv = layers * 2 * keys * (prompt + branches * private)
    size = (weights + kv) * dtype.itemsize
    return Ceiling(seconds, size / bandwidth(size, device), flops + attention, size)


def module_cost(model: Any, backend: Any, rows: int, *, pairs: int = 200) -> tuple[float, float, float]:
    """How many times longer transformers' own modules take than our fused stack: quartiles (25, 50, 75 %).

    The same rows, attention over one key each. Ratios of calls made back to back: on a busy machine two
    medians taken one after the other differ by more than what is measured.
    """
    import numpy as np

    from decoding.model.backend import AttentionBlock, RowBatch

    ids = torch.zeros(rows, 1, dtype=torch.long, device=model.device)
    every = np.arange(rows, dtype=np.int64)
    block = AttentionBlock(
        0, rows, np.zeros((1, 0), np.int64), np.zeros(1, np.int64), every[:, None] + 1, np.ones((rows, 1, 1), bool)
    )
    batch = RowBatch(np.zeros(rows, np.int64), np.zeros(rows, np.int64), every + 1, every, (block,))
    pool = backend.new_pool(rows)

    def seconds(function: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        function()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    ratios = []
    with torch.inference_mode():
        for pair in range(pairs + 10):
            calls = [lambda: model(ids, use_cache=False), lambda: backend.head(backend.forward(batch, pool))]
            order = (0, 1) if pair % 2 else (1, 0)  # neither side always goes first
            took = {side: seconds(calls[side]) for side in order}
            if pair >= 10:
                ratios.append(took[0] / took[1])
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)

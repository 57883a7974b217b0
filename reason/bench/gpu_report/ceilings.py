"""Part a1: what the card reaches, and in which layout its library multiplies few rows faster."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from reason.bench.gpu_report.rig import ReportRig, measure_ceilings
from reason.bench.gpu_report.timing import Call, time_calls

PRODUCTS = {"qkv": (3584, 4608), "out": (3584, 3584), "gate_up": (3584, 37888), "down": (18944, 3584)}
"""Inputs and outputs of the products of a layer of Qwen2.5-7B. Numbers, so that this part imports no engine."""
_TINY_PRODUCTS = {"qkv": (64, 128), "down": (128, 64)}
_CACHE_BYTES = 1 << 28
"""Weights that are multiplied in turn have together at least so many bytes: more than any cache of a card holds."""
_MOST_COPIES = 12


def measure_limits(rig: ReportRig) -> None:
    """Adds the ceilings, and times of the products of a 7B layer with weights in both layouts."""
    card = measure_ceilings(rig)
    rig.add_figure("copy", f"{card.bandwidth / 1e12:.2f} TB/s, read and written", bytes_per_s=card.bandwidth)
    rig.add_figure("bfloat16 product", f"{card.peak / 1e12:.0f} TFLOPS", flops_per_s=card.peak)
    products = rig.pick(PRODUCTS, _TINY_PRODUCTS)
    totals: dict[str, float] = {"in,out": 0.0, "out,in": 0.0}
    with torch.inference_mode():
        for rows in rig.pick((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (1, 4)):
            times = {name: _time_layer(rig, rows, *size) for name, size in products.items()}
            sums = {layout: sum(one[layout] for one in times.values()) for layout in totals}
            if rows <= 64:
                totals = {layout: totals[layout] + sums[layout] for layout in totals}
            limit = sum(card.minimum_seconds(2 * k * n, 2 * rows * k * n) for k, n in products.values())
            rig.add_figure(
                f"products of a layer of 7B, {rows} rows",
                f"[in, out] {1e6 * sums['in,out']:.0f} us, [out, in] {1e6 * sums['out,in']:.0f} us, "
                f"limit {1e6 * limit:.0f} us",
                seconds=times,
                limit_s=limit,
            )
    faster = min(totals, key=totals.__getitem__)
    rig.add_figure(
        "faster layout of weights up to 64 rows",
        f"[{faster}]: {totals['in,out'] / totals['out,in']:.3f} = time of [in, out] over [out, in]",
        seconds=totals,
    )


def _time_layer(rig: ReportRig, rows: int, inputs: int, outputs: int) -> dict[str, float]:
    """Returns the seconds of a product in each layout, weights read from memory."""
    copies = min(_MOST_COPIES, max(1, _CACHE_BYTES // (2 * inputs * outputs)))
    x = torch.randn(rows, inputs, device=rig.device).to(rig.dtype)
    weights = [torch.randn(inputs, outputs, device=rig.device).to(rig.dtype) * 0.02 for _ in range(copies)]
    calls: list[Call] = [_bind(torch.mm, x, weight) for weight in weights]
    seconds = {"in,out": time_calls(calls, rig.device)}
    calls = [_bind(F.linear, x, weight.T.contiguous()) for weight in weights]
    return seconds | {"out,in": time_calls(calls, rig.device)}


def _bind(function: Callable[..., object], *tensors: torch.Tensor) -> Call:
    return lambda: function(*tensors)

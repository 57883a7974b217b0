"""The kernels between the products of a layer compile for GPUs without spilled registers."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from decoding.model.layer_operators import ROTATION_WARPS, SILU_COLUMNS, count_norm_warps
from tests.support.compiled_kernels import CompiledKernel, KernelJob, compile_kernels

pytest.importorskip("triton")

MODULE = "decoding.model.layer_kernels"
CAPABILITIES = (80, 90)


class LayerSizes(NamedTuple):
    """Sizes of a model, and whether it has biases or norms per head."""

    dtype: str
    hidden: int
    kv_heads: int
    queries: int
    head: int
    mlp: int
    has_bias: bool
    has_norm: bool


MODELS = {
    "Qwen2.5-7B": LayerSizes("bf16", 3584, 4, 7, 128, 18944, has_bias=True, has_norm=False),
    "Qwen2.5-0.5B": LayerSizes("bf16", 896, 2, 7, 64, 4864, has_bias=True, has_norm=False),
    "Qwen3-32B": LayerSizes("bf16", 5120, 8, 8, 128, 25600, has_bias=False, has_norm=True),
    "Llama-3-70B": LayerSizes("fp32", 8192, 8, 8, 128, 28672, has_bias=False, has_norm=False),
    "heads of 96": LayerSizes("fp16", 3072, 8, 3, 96, 8192, has_bias=True, has_norm=True),
}


def jobs(model: LayerSizes, capability: int) -> list[KernelJob]:
    number = f"*{model.dtype}"
    block = 1 << (model.hidden - 1).bit_length()
    norm = {"x": number, "delta": number, "weight": number, "total": number, "normed": number, "eps": "fp32"}
    rows = {"qkv": number, "bias": number, "q_norm": number, "k_norm": number, "cos_sin": "*fp32", "slots": "*i64"}
    heads = {"KV_HEADS": model.kv_heads, "QUERIES": model.queries, "HEAD": model.head}
    blocks = {"BLOCK_Q": 1 << (model.queries - 1).bit_length(), "BLOCK": 1 << (model.head // 2 - 1).bit_length()}
    options = {"HAS_BIAS": int(model.has_bias), "HAS_NORM": int(model.has_norm)}
    return [
        KernelJob(
            f"{MODULE}:add_and_norm",
            norm,
            {"SIZE": model.hidden, "BLOCK": block, "HAS_DELTA": 1},
            capability,
            {"num_warps": count_norm_warps(block)},
        ),
        KernelJob(
            f"{MODULE}:rotate_and_store",
            {**rows, "q": number, "kv": number, "num_slots": "i32", "eps": "fp32"},
            heads | blocks | options,
            capability,
            {"num_warps": ROTATION_WARPS},
        ),
        KernelJob(
            f"{MODULE}:multiply_by_silu",
            {"gate_up": number, "out": number},
            {"SIZE": model.mlp, "BLOCK": SILU_COLUMNS},
            capability,
            {},
        ),
    ]


@cache
def compiled() -> dict[tuple[str, int], list[CompiledKernel]]:
    """The three kernels by model and capability, compiled by one process."""
    cases = {(name, capability): jobs(MODELS[name], capability) for name in MODELS for capability in CAPABILITIES}
    results = iter(compile_kernels([job for case in cases.values() for job in case]))
    return {key: [next(results) for _ in case] for key, case in cases.items()}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("model", MODELS)
def test_no_register_is_spilled(model: str, capability: int) -> None:
    for kernel in compiled()[model, capability]:
        assert kernel.stack_bytes == 0
        assert not {"LDL", "STL"} & kernel.instructions.keys()
        assert kernel.registers <= 64  # 1,024 threads at a time on a multiprocessor


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_rows_of_aligned_sizes_are_read_in_wide_words(capability: int) -> None:
    norm, _, silu = compiled()["Qwen2.5-7B", capability]
    # 16 numbers of each thread of x, of delta and of the weights: two loads of 16 bytes each
    assert norm.instructions["LDG"] <= 6
    assert silu.instructions["LDG"] <= 2

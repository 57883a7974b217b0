"""The kernels of attention compile for GPUs without spilled registers, with tensor cores and asynchronous copies."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from decoding.model.segment_attention import NUM_STAGES, NUM_WARPS, KernelBlocks
from tests.support.compiled_kernels import CompiledKernel, KernelJob, compile_kernels

pytest.importorskip("triton")

MODULE = "decoding.model.segment_kernels"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# queries per key-value head, head size, dtype: Qwen2.5-7B, Llama-3-70B; others that have tiles of their own
MODELS = [(7, 128, "bf16"), (8, 128, "bf16"), (6, 64, "fp16"), (4, 96, "bf16"), (7, 128, "fp32")]
CAPABILITIES = (80, 90)
KV_HEADS = 4
MAX_SHARED_BYTES = 99 << 10
"""What a program may use on every GPU since sm_80; sm_86 and sm_89 have the least."""


def jobs(model: tuple[int, int, str], capability: int) -> list[KernelJob]:
    queries, head, dtype = model
    blocks = KernelBlocks.for_heads(queries, head, DTYPES[dtype])
    sizes = {"KV_HEADS": KV_HEADS, "QUERIES": queries, "HEAD": head, "BLOCK_D": blocks.head}
    plan = {"items": "*i32", "keys": "*i32", "words": "*i64", "first_partial": "*i32"}
    partials = {"means": "*fp32", "log_sums": "*fp32"}
    numbers = {"log2_scale": "fp32", "num_slots": "i32"}
    # the rows of queries lie among those of keys and values
    tile = {"Q_STRIDE": (queries + 2) * KV_HEADS * head, "BLOCK_M": blocks.queries, "BLOCK_N": blocks.keys}
    options = {"num_warps": NUM_WARPS, "num_stages": NUM_STAGES}
    return [
        KernelJob(
            f"{MODULE}:compute_partials",
            {"q": f"*{dtype}", "kv": f"*{dtype}", **plan, **partials, **numbers},
            sizes | tile,
            capability,
            options,
        ),
        KernelJob(
            f"{MODULE}:merge_partials",
            {**partials, "first_partial": "*i32", "out": f"*{dtype}"},
            sizes | {"BLOCK_Q": 8},
            capability,
            {"num_warps": NUM_WARPS},
        ),
    ]


@cache
def compiled() -> dict[tuple[tuple[int, int, str], int], list[CompiledKernel]]:
    """Both kernels by model and capability, compiled by one process."""
    wanted_kernels = {(model, capability): jobs(model, capability) for model in MODELS for capability in CAPABILITIES}
    results = iter(compile_kernels([job for pair in wanted_kernels.values() for job in pair]))
    return {key: [next(results) for _ in pair] for key, pair in wanted_kernels.items()}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_no_register_is_spilled_and_shared_memory_fits_every_gpu(model: tuple[int, int, str], capability: int) -> None:
    for kernel in compiled()[model, capability]:
        assert kernel.stack_bytes == 0
        assert not {"LDL", "STL"} & kernel.instructions.keys()
        assert kernel.registers <= 255
        assert kernel.shared_bytes <= MAX_SHARED_BYTES


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_products_run_on_tensor_cores_and_keys_are_copied_ahead(model: tuple[int, int, str], capability: int) -> None:
    partials, _ = compiled()[model, capability]
    # HGMMA: one instruction of four warps, of sm_90; LDGSTS: from global to shared memory, past the registers
    product = "FFMA" if model[2] == "fp32" else {80: "HMMA", 90: "HGMMA"}[capability]
    assert partials.instructions.get(product, 0) >= 8
    assert partials.instructions.get("LDGSTS", 0) > 0

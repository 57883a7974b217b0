"""The kernel of invariant products compiles for GPUs without spilled registers, with tensor cores and copies ahead."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from decoding.model.invariant_products import ProductTile
from tests.support.compiled_kernels import CompiledKernel, KernelJob, compile_kernels

pytest.importorskip("triton")

CAPABILITIES = (80, 90)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# inputs, outputs, dtype, whether the weight lies transposed and the result is float32, as of a tied head
PRODUCTS = {
    "down of Qwen2.5-7B": (18944, 3584, "bf16", False),
    "head of Qwen2.5-7B": (3584, 152064, "bf16", True),
    "qkv of heads of 96": (3072, 4032, "fp16", False),
    "out of Llama-3-8B": (4096, 4096, "fp32", False),
}
MAX_SHARED_BYTES = 99 << 10
"""What a program may use on every GPU since sm_80; sm_86 and sm_89 have the least."""


def job(product: str, capability: int) -> KernelJob:
    inputs, outputs, dtype, is_head = PRODUCTS[product]
    tile = ProductTile.for_dtype(DTYPES[dtype])
    number = f"*{dtype}"
    return KernelJob(
        "decoding.model.invariant_kernels:multiply_rows",
        {"x": number, "weight": number, "bias": number, "out": "*fp32" if is_head else number, "num_rows": "i32"},
        {
            "INPUTS": inputs, "OUTPUTS": outputs,
            "INPUT_STRIDE": 1 if is_head else outputs, "OUTPUT_STRIDE": inputs if is_head else 1,
            "HAS_BIAS": int(not is_head), "BLOCK_M": tile.rows, "BLOCK_N": tile.outputs, "BLOCK_K": tile.inputs,
        },
        capability,
        {"num_warps": tile.num_warps, "num_stages": tile.num_stages},
    )  # fmt: skip


@cache
def compiled() -> dict[tuple[str, int], CompiledKernel]:
    """The kernel by product and capability, compiled by one process."""
    cases = [(product, capability) for product in PRODUCTS for capability in CAPABILITIES]
    return dict(zip(cases, compile_kernels([job(*case) for case in cases]), strict=True))


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_no_register_is_spilled_and_tiles_are_copied_ahead_for_tensor_cores(product: str, capability: int) -> None:
    kernel = compiled()[product, capability]
    assert kernel.stack_bytes == 0
    assert not {"LDL", "STL"} & kernel.instructions.keys()
    assert kernel.registers <= 255
    assert kernel.shared_bytes <= MAX_SHARED_BYTES
    # HGMMA: one instruction of four warps, of sm_90; LDGSTS: from global to shared memory, past the registers
    instruction = "FFMA" if PRODUCTS[product][2] == "fp32" else {80: "HMMA", 90: "HGMMA"}[capability]
    assert kernel.instructions.get(instruction, 0) > 0
    assert kernel.instructions.get("LDGSTS", 0) > 0

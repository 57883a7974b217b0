"""The kernels of the sampler compile for GPUs, with their numbers in registers and a precise logarithm."""

from __future__ import annotations

from functools import cache

import pytest

from tests.support.compiled_kernels import CompiledKernel, KernelJob, compile_kernels

pytest.importorskip("triton")

MODULE = "decoding.gpu_sampler_kernels"
PARTS = {"PARTS": 32, "C": 8}
POINTERS = {"params_T6": "*i32", "scores_TPC": "*fp32", "ids_TPC": "*i32", "sums_TP4": "*fp32"}
RANKS = {"masses_TPC": "*fp32", "counts_TPC": "*i32"}
RESULTS = {"tokens_T": "*i64", "logsumexp_T": "*fp32"}
NUMBERS = {"vocab_size": "i32", "stride": "i32"}
DTYPES = ("bf16", "fp32")
CAPABILITIES = (80, 90)


def jobs(dtype: str, capability: int) -> list[KernelJob]:
    logits = {"logits": f"*{dtype}"}
    split = {"SPAN": 8192, "BLOCK": 1024, **PARTS}
    kernels: dict[str, tuple[dict[str, str], dict[str, int]]] = {
        "collect_candidates": ({**logits, **POINTERS, **NUMBERS}, split),
        "rank_candidates": ({**logits, **POINTERS, **RANKS, **NUMBERS}, split),
        "choose_candidates": (
            {**logits, **POINTERS, **RANKS, "top_TK": f"*{dtype}", **RESULTS, **NUMBERS, "num_top": "i32"},
            {"K": 32, **PARTS},
        ),
        "search_tokens": (
            {**logits, "params_T6": "*i32", "sums_TP4": "*fp32", "tokens_T": "*i64", **NUMBERS},
            {"BLOCK": 1024, "PARTS": 32},
        ),
    }
    return [
        KernelJob(f"{MODULE}:{name}", signature, sizes, capability, {})
        for name, (signature, sizes) in kernels.items()
    ]  # fmt: skip


@cache
def compile_all() -> dict[tuple[str, int], list[CompiledKernel]]:
    """The four kernels by type of the logits and capability, compiled by one process."""
    cases = {(dtype, capability): jobs(dtype, capability) for dtype in DTYPES for capability in CAPABILITIES}
    results = iter(compile_kernels([job for case in cases.values() for job in case]))
    return {key: [next(results) for _ in case] for key, case in cases.items()}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_register_is_spilled_where_a_vocabulary_is_read(dtype: str, capability: int) -> None:
    collect, rank, choose, search = compile_all()[dtype, capability]
    for kernel in (collect, rank, search):  # those that pass over a vocabulary
        assert kernel.stack_bytes == 0
        assert not {"LDL", "STL"} & kernel.instructions.keys()
        assert kernel.registers <= 168  # three blocks of 128 threads at a time on a multiprocessor
    assert choose.registers <= 168

"""Chooses how a model runs where the bits of a token may not depend on its batch: the setting `numerics=invariant`.

Two paths keep that promise, on one machine with one build:

- on CUDA, segments with splits at absolute positions (`aligned_segments`) and products whose sums have one order
  (`invariant_products`), in float32, bfloat16 or float16; with TRITON_INTERPRET=1 also on a CPU, for tests;
- on a CPU the compiled decoder, in float32, and in bfloat16 where the CPU has tiles (AMX).

PyTorch's own products do not: their library chooses the order of a sum by the number of rows. What cannot keep the
promise is refused. Imports no torch: settings are checked before it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from decoding.model.families import SILU

if TYPE_CHECKING:
    import torch


def require_invariant_settings(decoder: str, attention: str, dtype: str) -> None:
    """Raises ValueError for settings with which no model and no machine keeps the promise."""
    if dtype == "float64":
        raise ValueError(
            "numerics=invariant cannot run in float64, which only PyTorch's own products have: set dtype=auto, float32 "
            "or bfloat16, or numerics=fast"
        )
    if decoder == "eager" and attention == "blocks":
        raise ValueError(
            "numerics=invariant cannot run with decoder=eager and attention=blocks, whose sums depend on the batch: "
            "set decoder=auto and attention=auto, or numerics=fast"
        )


def require_invariant_model(config: Mapping[str, object]) -> None:
    """Raises ValueError for a model, given its config.json, that has no path which keeps the promise."""
    activation = config.get("hidden_act", SILU[0])
    if activation not in SILU:
        raise ValueError(
            f"numerics=invariant cannot run this model: its activation is {activation}, and only the kernels of silu "
            "give a row the same bits in every batch; set numerics=fast"
        )


def pick_invariant_path(decoder: str, attention: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Returns the decoder and the attention that keep the promise, of those that the settings leave open.

    Raises: ValueError where there is none.
    """
    # here: they import torch and Numba
    from decoding.compiled import explain_no_numba
    from decoding.model.decoder_choice import explain_uncompiled_dtype
    from decoding.model.segment_attention import explain_no_segments

    dtype_name = str(dtype).removeprefix("torch.")
    require_invariant_settings(decoder, attention, dtype_name)
    if device.type == "cuda" or attention == "segments":
        reason = explain_no_segments(device, dtype)
        if attention == "blocks":
            reason = "attention=blocks has products of PyTorch, whose sums depend on the batch"
        elif decoder == "compiled":
            reason = "decoder=compiled runs on a CPU over blocks"
        if reason is not None:
            raise ValueError(
                f"numerics=invariant cannot run on {device.type} over segments: {reason}; set decoder=auto, "
                "attention=auto and a dtype of at most 32 bits on a device with Triton, or numerics=fast"
            )
        return "eager", "segments"
    reason = explain_uncompiled_dtype(dtype)
    if reason is None and decoder == "eager":
        reason = "decoder=eager adds up in an order that depends on the batch"
    reason = reason or explain_no_numba()
    if reason is not None:
        raise ValueError(
            f"numerics=invariant cannot run on a CPU but in the compiled decoder: {reason}; set decoder=auto, "
            "attention=auto and dtype=float32, or numerics=fast"
        )
    return "compiled", "blocks"

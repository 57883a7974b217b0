"""Chooses how the layers of a model run: in one compiled call, or operation by operation. Needs no Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from decoding.compiled import explain_no_numba
from decoding.model.backend import DECODER_CHOICES
from decoding.model.decoder_weights import DecoderWeights
from decoding.model.families import SILU
from decoding.stats import DecoderKind
from decoding.validation import require_choice

if TYPE_CHECKING:
    from decoding.model.panels import PanelType

MAX_AUTO_WEIGHTS = 14_000_000
"""Weights up to which `decoder=auto` is the compiled decoder on a CPU where larger models were not measured with it.

It has no limit with AVX2 alone, and with AVX-512 for weights of bfloat16. Measured with the shape of a 0.5B model in
bfloat16 and two threads, 300 keys per row, rounds of 1 / 4 / 16 / 64 rows: with AVX2 alone the eager decoder takes
4.9 / 4.8 / 2.9 / 1.5 times as long, with AVX-512 3.1 / 1.6 / 1.5 / .9 times, with tiles (AMX) too 2.9 / 2.9 / 3.6 / 3.0
times. Its weights take twice the memory."""


def explain_uncompiled(weights: DecoderWeights) -> str | None:
    """Returns what keeps the model from running compiled, or None where nothing does."""
    if weights.device.type != "cpu":
        return f"its device is {weights.device.type}, not cpu"
    if (reason := explain_uncompiled_dtype(weights.dtype)) is not None:
        return reason
    if weights.activation_name not in SILU:
        return f"its activation is {weights.activation_name}, not silu"
    if weights.dtype == torch.bfloat16 and not _runs_in_tiles(weights):
        return f"its dtype is bfloat16, not float32, and its width is {weights.hidden_size}, not a multiple of 32"
    return explain_no_numba()


def explain_uncompiled_dtype(dtype: torch.dtype) -> str | None:
    """Returns what keeps models of this dtype from running compiled on a CPU, or None where nothing does."""
    if dtype == torch.float32:
        return None
    if dtype != torch.bfloat16:
        return f"its dtype is {str(dtype).removeprefix('torch.')}, not float32 or bfloat16"
    if (reason := explain_no_numba()) is not None:
        return reason
    # here: it needs Numba
    from decoding.cpu_features import multiplies_bfloat16

    return None if multiplies_bfloat16() else "its dtype is bfloat16, and neither AMX nor AVX512_BF16 can be used here"


def pick_decoder(choice: str, weights: DecoderWeights, num_head_weights: int) -> DecoderKind:
    """Returns how the model runs; `auto` is compiled on a CPU where that is faster, else eager.

    Raises: ValueError for an unknown choice, and for `compiled` with a model that cannot run so.
    """
    require_choice("decoder", choice, DECODER_CHOICES)
    reason = explain_uncompiled(weights)
    if choice == "compiled" and reason is not None:
        raise ValueError(f"decoder=compiled cannot run this model: {reason}; set decoder=auto or decoder=eager")
    if choice == "auto":
        is_small = weights.num_weights + num_head_weights <= MAX_AUTO_WEIGHTS
        is_faster = reason is None and (is_small or _favours_panels(weights))
        return "compiled" if is_faster else "eager"
    return "compiled" if choice == "compiled" else "eager"


def _favours_panels(weights: DecoderWeights) -> bool:
    capability = torch.backends.cpu.get_cpu_capability()
    return capability == "AVX2" or (capability.startswith("AVX512") and _pick_panels(weights) is not np.float32)


def _runs_in_tiles(weights: DecoderWeights) -> bool:
    return _pick_panels(weights) is np.int16


def _pick_panels(weights: DecoderWeights) -> PanelType:
    # here: it needs Numba
    from decoding.model.weight_panels import pick_panel_type

    # the other layers will be of the same type of number
    return pick_panel_type(weights.iter_matrices(num_layers=1), weights.hidden_size, weights.dtype)

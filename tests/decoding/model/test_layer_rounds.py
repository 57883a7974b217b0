"""Models of every family give with the layer's kernels what they give with PyTorch's operations."""

from __future__ import annotations

import asyncio
from contextlib import closing

import numpy as np
import pytest
import torch

from decoding.core import HeadOutputs
from decoding.model import fused_decoder, layer_operators
from decoding.model.decoder_weights import DecoderWeights
from decoding.model.fused_decoder import FusedDecoder
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from tests.support.kernels import KERNEL_DEVICE
from tests.support.random_models import FAMILIES, random_model

TEXTS = [tuple(number * 37 % 97 for number in range(length)) for length in (9, 4, 1)]


def open_backend(family: str, attention: str, dtype: str = "float32", **config: object) -> HFBackend:
    model = random_model(family, **config)
    return HFBackend(model, device=KERNEL_DEVICE, dtype=dtype, decoder="eager", attention=attention)


def read_texts(backend: HFBackend) -> list[HeadOutputs]:
    """Logits at some places; texts are read in pieces, so that a pass has rows without an output."""
    with closing(PrefillEngine(backend, kv_bytes=60 * backend.kv_bytes_per_token, max_batched_tokens=6)) as engine:
        return asyncio.run(engine.encode(TEXTS, [len(tokens) // 2 for tokens in TEXTS]))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_pytorchs_operations(family: str) -> None:
    expected = read_texts(open_backend(family, "blocks"))
    for got, other in zip(read_texts(open_backend(family, "segments")), expected, strict=True):
        np.testing.assert_allclose(got, other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("activation", "has_kernel"), [("gelu", False), ("silu", True)])
def test_other_activations_stay_with_pytorch(
    activation: str, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_texts(open_backend("llama", "blocks", hidden_act=activation))
    calls = list[torch.Size]()

    def multiply(gate_up: torch.Tensor) -> torch.Tensor:
        calls.append(gate_up.shape)
        return layer_operators.multiply_by_silu(gate_up)

    monkeypatch.setattr(fused_decoder, "multiply_by_silu", multiply)
    for got, other in zip(read_texts(open_backend("llama", "segments", hidden_act=activation)), expected, strict=True):
        np.testing.assert_allclose(got, other, atol=2e-4, rtol=2e-4)
    assert bool(calls) == has_kernel


@pytest.mark.parametrize(("attention", "expected"), [("segments", torch.float32), ("blocks", torch.bfloat16)])
def test_the_kernels_rotate_by_angles_in_float32(attention: str, expected: torch.dtype) -> None:
    model = random_model("llama").to(torch.bfloat16)
    decoder = FusedDecoder(DecoderWeights(model.model), has_segments=attention == "segments")
    assert decoder.rotary.extend_to(5).dtype == expected

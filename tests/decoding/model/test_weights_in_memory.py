"""Weights are fused layer by layer, and the originals freed: there is never more than one layer twice."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from decoding.model.fused_decoder import FusedDecoder
from decoding.model.transformers_checkpoint import HFBackend
from reason.models.plain_checkpoint import PlainLanguageModel, load_plain_model, open_language_model
from tests.support.live_bytes import LiveBytes
from tests.support.pretended_gpu import pretended_gpu
from tests.support.random_models import SHAPE

NUM_LAYERS = 24
SIZES = {"num_hidden_layers": NUM_LAYERS, "hidden_size": 64, "intermediate_size": 160, "vocab_size": 300}
PEAK = 1.1
"""The most that may be in memory, in sizes of the model."""


def save_model(folder: Path, *, tied: bool = True, dtype: torch.dtype = torch.float32) -> Path:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**{**SHAPE, **SIZES}, tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    model.to(dtype).save_pretrained(folder)
    return folder


def load_counted(folder: Path, memory: LiveBytes) -> Any:
    """The plain model of a folder, all of whose weights are counted."""
    model = load_plain_model(str(folder), PlainLanguageModel)
    for weight in model.parameters():
        memory.add(weight.detach())
    return model


def tensors_of(decoder: FusedDecoder) -> list[Tensor]:
    tensors = [decoder.embedding, decoder.final_norm]
    return tensors + [weight for layer in decoder.layers for weight in vars(layer).values() if weight is not None]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("tied", [True, False])
def test_fused_weights_take_the_place_of_the_originals(
    tied: bool, device: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, folder = LiveBytes(), save_model(tmp_path, tied=tied)
    with pretended_gpu(monkeypatch) if device != "cpu" else nullcontext(), memory, torch.no_grad():
        model = load_counted(folder, memory)
        size = memory.now
        memory.restart()
        backend = HFBackend(model, device=device, dtype=dtype, decoder="eager", attention="blocks", frees_model=True)
        fused = memory.peak
        del model
        gc.collect()
        assert isinstance(backend.decoder, FusedDecoder)
        assert all(str(weight.device) == device for weight in tensors_of(backend.decoder))
        in_dtype = size if dtype == "float32" else size // 2
        # the rest are the numbers of the rotary embedding, if any
        assert in_dtype <= memory.now < 1.01 * in_dtype + 4096
        held = sum(weight.nbytes for weight in tensors_of(backend.decoder))
        assert held + (0 if tied else 300 * 64 * in_dtype // size * 4) == pytest.approx(in_dtype, rel=0.01)
    embedding = 300 * 64 * 4
    # a head or an embedding is one more thing that is copied, on its own
    assert fused <= PEAK * size + embedding * (device != "cpu" or dtype != "float32")


def test_originals_stay_where_the_caller_keeps_the_model(tmp_path: Path) -> None:
    model = load_counted(save_model(tmp_path), LiveBytes())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    HFBackend(model, device="cpu", dtype="bfloat16", decoder="eager")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_freed_checkpoint_is_the_same_model(dtype: torch.dtype, tmp_path: Path) -> None:
    """From the file, by this project and by transformers, and from a model that is kept; also with another dtype."""
    folder = str(save_model(tmp_path, dtype=dtype))
    opened = open_language_model(folder, device="cpu", dtype="float32", decoder="eager").decoder
    by_transformers = HFBackend.from_pretrained(folder, device="cpu", dtype="float32", decoder="eager").decoder
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = HFBackend(model, device="cpu", dtype="float32", decoder="eager").decoder
    assert isinstance(expected, FusedDecoder)
    for decoder in (opened, by_transformers):
        assert isinstance(decoder, FusedDecoder)
        for one, other in zip(tensors_of(decoder), tensors_of(expected), strict=True):
            assert torch.equal(one, other)


def test_opened_checkpoint_maps_no_file(tmp_path: Path) -> None:
    """Nor do its originals stay, whatever the dtype of the file: the peak is the model and a layer."""
    folder = str(save_model(tmp_path, tied=False, dtype=torch.bfloat16))
    with LiveBytes() as memory, torch.no_grad():
        backend = open_language_model(folder, device="cpu", dtype="float32", decoder="eager")
        gc.collect()
        size = sum(weight.nbytes for weight in tensors_of(_decoder_of(backend))) + 300 * 64 * 4
        assert memory.now < 1.01 * size + 4096
        # a file of half the size, of which a weight is read at a time
        assert memory.peak <= PEAK * size
    maps = Path("/proc/self/maps")
    if maps.exists():
        for load in (open_language_model, HFBackend.from_pretrained):
            for decoder in ("eager", "compiled"):
                backend = load(folder, device="cpu", dtype="float32", decoder=decoder)
                assert backend.decoder_kind == decoder
                assert str(tmp_path) not in maps.read_text(encoding="utf-8")
            plain = load(folder, device="cpu", dtype="bfloat16", decoder="eager")
            assert str(tmp_path) not in maps.read_text(encoding="utf-8")
            assert _decoder_of(plain).dtype == torch.bfloat16


def _decoder_of(backend: HFBackend) -> FusedDecoder:
    assert isinstance(backend.decoder, FusedDecoder)
    return backend.decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_decoder_takes_the_layers_away_one_by_one(dtype: torch.dtype, tmp_path: Path) -> None:
    """And as they are: of a file in bfloat16 nothing is ever in float32 but the one layer that is laid out."""
    with LiveBytes() as memory, torch.no_grad():
        model = load_counted(save_model(tmp_path, dtype=dtype), memory)
        size = memory.now
        memory.restart()
        backend = HFBackend(model, device="cpu", dtype="float32", decoder="compiled", frees_model=True)
        del model
        gc.collect()
    assert (backend.decoder_kind, backend.dtype) == ("compiled", torch.float32)
    assert memory.peak <= PEAK * size
    # only matrices are laid out with a pad; what is alive then falls from all layers to one
    alive = [now for name, now in memory.trace if "pad" in name]
    per_layer = (alive[0] - alive[-1]) / (NUM_LAYERS - 1)
    layer = sum(w.numel() for w in astuple(_first_layer(tmp_path)) if w is not None) * dtype.itemsize
    assert per_layer == pytest.approx(layer, rel=0.15)


def _first_layer(folder: Path) -> Any:
    return _decoder_of(open_language_model(str(folder), device="cpu", dtype="float32", decoder="eager")).layers[0]

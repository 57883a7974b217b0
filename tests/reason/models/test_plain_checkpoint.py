"""Plain checkpoints are read as transformers reads them, and all others are left to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from decoding.model.transformers_checkpoint import HFBackend
from reason.models.plain_checkpoint import (
    PlainLanguageModel,
    load_plain_model,
    open_language_model,
    read_plain_config,
)

SIZES: dict[str, Any] = {
    **{"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 512},
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases and a tied head": LlamaConfig(
        **SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=16
    ),
    "qwen2": Qwen2Config(**SIZES, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
    "qwen3": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
}


@pytest.fixture(params=list(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(CONFIGS[request.param]).save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    saved = json.loads(file.read_text(encoding="utf-8")) | fields
    file.write_text(json.dumps({key: value for key, value in saved.items() if value is not ...}), encoding="utf-8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weights_and_rotations_are_those_of_transformers(folder: Path, dtype: torch.dtype) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    plain = load_plain_model(str(folder), PlainLanguageModel)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    ours, theirs = plain.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == dtype for name in ours)
    for mine, other in zip(
        *(one.model.rotary_emb(torch.zeros(1, dtype=dtype), torch.arange(500)[None]) for one in (plain, model)),
        strict=True,
    ):
        assert torch.equal(mine, other)
    attention = [one.model.layers[0].self_attn.scaling for one in (plain, model)]
    assert attention[0] == attention[1]


def test_engine_runs_a_plain_checkpoint_as_it_runs_that_of_transformers(folder: Path) -> None:
    ours = open_language_model(str(folder), device="cpu", dtype="float32")
    theirs = HFBackend.from_pretrained(str(folder), device="cpu", dtype="float32")
    for name in ("vocab_size", "max_positions", "kv_bytes_per_token", "dtype", "device"):
        assert getattr(ours, name) == getattr(theirs, name)
    hidden = torch.randn(3, 32)
    assert torch.equal(ours.apply_head(hidden), theirs.apply_head(hidden))


def test_frequencies_are_not_rounded_to_the_dtype_of_the_weights(folder: Path) -> None:
    """As a cast of a model with its buffers would: the angle of position 400 would be wrong by a whole radian."""
    model = load_plain_model(str(folder), PlainLanguageModel)
    positions = torch.arange(400, 500)[None]
    exact, _ = model.model.rotary_emb(torch.zeros(1), positions)
    rounded, _ = model.to(torch.bfloat16).model.rotary_emb(torch.zeros(1, dtype=torch.bfloat16), positions)
    assert torch.allclose(rounded.float(), exact, atol=2**-8)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": ...},
        {"use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"quantization_config": {"quant_method": "gptq"}},
        {"num_key_value_heads": ...},
    ],
    ids=str,
)
def test_what_is_special_is_left_to_transformers(fields: dict[str, object], tmp_path: Path) -> None:
    LlamaConfig(**SIZES).save_pretrained(tmp_path)
    assert read_plain_config(tmp_path) is not None
    edit_config(tmp_path, **fields)
    assert read_plain_config(tmp_path) is None


def test_other_weights_than_the_models_are_left_to_transformers(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    for fields in ({"num_hidden_layers": 3}, {"intermediate_size": 32}, {"tie_word_embeddings": True}):
        original = (tmp_path / "config.json").read_text(encoding="utf-8")
        edit_config(tmp_path, **fields)
        assert load_plain_model(str(tmp_path), PlainLanguageModel) is None, fields
        (tmp_path / "config.json").write_text(original, encoding="utf-8")
    assert load_plain_model(str(tmp_path), PlainLanguageModel) is not None
    assert load_plain_model("owner/on_the_hub", PlainLanguageModel) is None


def test_a_checkpoint_for_transformers_loads_without_a_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    edit_config(tmp_path, rope_parameters={"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0})
    capfd.readouterr()
    open_language_model(str(tmp_path), device="cpu", dtype="float32")
    assert capfd.readouterr() == ("", "")

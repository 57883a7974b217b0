"""Random transformers models of every family that the engine runs, small enough for every test."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from decoding.model.transformers_checkpoint import HFBackend

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FAMILIES = {
    "qwen2": lambda **kw: transformers.Qwen2Config(**SHAPE | kw),
    "qwen3": lambda **kw: transformers.Qwen3Config(**SHAPE | kw, head_dim=12),
    "llama": lambda **kw: transformers.LlamaConfig(**SHAPE | kw, attention_bias=True, mlp_bias=True),
    "llama3_rope": lambda **kw: transformers.LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        **kw,
    ),
}


def random_model(family: str, auto: Any = transformers.AutoModelForCausalLM, **config: Any) -> Any:
    """Returns a model in which every weight matters: norms and biases are random, and logits far from uniform."""
    torch.manual_seed(0)
    model = auto.from_config(FAMILIES[family](**config)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.5 if parameter.ndim == 1 else 0.0, std=0.25)
    return model


def open_gpu_backend() -> HFBackend:
    """Returns a backend on a GPU, which tests pretend."""
    return HFBackend(random_model("qwen2"), device="cuda", dtype="float32")

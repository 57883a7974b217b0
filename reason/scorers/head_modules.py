"""Torch modules of reward-model heads: checkpoints load as a trunk, which makes hidden states, and a head.

They are separate, so that the engine's own forward pass runs the trunk over its prefix cache. Import this module
inside functions only. No code of a checkpoint's repository is ever run: the two layouts that transformers does not know
are written down here.

Shapes: hidden states `[T, D]`, outputs `[T, num_outputs]`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from decoding.core import Tokens
from decoding.model.reward_heads import process_reward_layers, step_value_layers


class ModelParts(NamedTuple):
    """`trunk` is a transformers base model (what `AutoModel` gives), `head` maps its last hidden states to outputs."""

    trunk: nn.Module
    head: nn.Module


class ProcessRewardModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """Layout of Qwen2.5-Math-PRM: `model.*`, then `score.0` and `score.2` with a ReLU between; two outputs."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.score = process_reward_layers(config.hidden_size)
        self.post_init()


class StepValueModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """Layout of Skywork-o1-Open-PRM: `model.*` and `v_head.summary`; one output. Its `lm_head` is not loaded."""

    _keys_to_ignore_on_load_unexpected = (r"lm_head\..*",)

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.v_head = step_value_layers(config.hidden_size)
        self.post_init()


class LabelTokenHead(nn.Module):
    """The rows of a language model's head for a few tokens: their logits without those of all others."""

    def __init__(self, lm_head: nn.Linear, label_token_ids: Tokens) -> None:
        super().__init__()
        rows = list(label_token_ids)
        self.weight = nn.Parameter(lm_head.weight.detach()[rows].clone(), requires_grad=False)
        self.bias = None if lm_head.bias is None else nn.Parameter(lm_head.bias.detach()[rows], requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[T, D]` to `[T, len(label_token_ids)]`."""
        return nn.functional.linear(hidden, self.weight, self.bias)


def load_trunk_config(source: str) -> PretrainedConfig:
    """Returns the checkpoint's config.

    A Mistral is returned as a Llama: same weights, same names, and same arithmetic for inputs within its window, where
    `prm.token_limit` keeps them.
    """
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if config.model_type != "mistral":
        return config
    values = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "sliding_window")}
    return LlamaConfig(**values)


def load_complete(model_class: Any, source: str, label: str, dtype: torch.dtype) -> Any:
    """Loads a transformers model on the CPU, in evaluation mode and without gradients.

    Raises: ValueError if weights are missing: transformers would fill them with random numbers.
    """
    config = load_trunk_config(source)
    model, info = model_class.from_pretrained(source, config=config, dtype=dtype, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{source} is not a complete {label} checkpoint: it lacks {', '.join(missing[:4])}")
    return model.eval().requires_grad_(False)

"""Torch modules of reward-model heads: checkpoints load as a trunk, which makes hidden states, and a head.

They are separate, so that the engine's own forward pass runs the trunk over its prefix cache. Import this module
inside functions only. No code of a checkpoint's repository is ever run: the two layouts that transformers does not know
are written down here.

Shapes: hidden states `[T, D]`, outputs `[T, num_outputs]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from decoding.core import Tokens
from decoding.model.reward_heads import process_reward_layers, step_value_layers
from reason.models.plain_checkpoint import Config, PlainClassifier, PlainDecoder, PlainLanguageModel, load_plain_model


class ModelParts(NamedTuple):
    """`trunk` is a decoder without a head, `head` maps its last hidden states to outputs."""

    trunk: nn.Module
    head: nn.Module


class ProcessRewardModel(nn.Module):
    """Layout of Qwen2.5-Math-PRM: `model.*`, then `score.0` and `score.2` with a ReLU between; two outputs."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = PlainDecoder(config)
        self.score = process_reward_layers(config.hidden_size)


class StepValueModel(nn.Module):
    """Layout of Skywork-o1-Open-PRM: `model.*` and `v_head.summary`; one output. Its `lm_head` is not loaded."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = PlainDecoder(config)
        self.v_head = step_value_layers(config.hidden_size)


class SequenceClassifier(nn.Module):
    """Layout of `...ForSequenceClassification`: `model.*` and `score` without a bias; one output per label."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = PlainDecoder(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)


class LabelTokenHead(nn.Linear):
    """The rows of a language model's head for a few tokens: their logits without those of all others."""

    def __init__(self, lm_head: nn.Linear, label_token_ids: Tokens) -> None:
        rows = list(label_token_ids)
        super().__init__(lm_head.in_features, len(rows), bias=lm_head.bias is not None, device="meta")
        self.weight = nn.Parameter(lm_head.weight.detach()[rows].clone(), requires_grad=False)
        if lm_head.bias is not None:
            self.bias = nn.Parameter(lm_head.bias.detach()[rows], requires_grad=False)


BY_TRANSFORMERS: dict[Callable[[Config], nn.Module], str] = {
    PlainLanguageModel: "AutoModelForCausalLM",
    PlainClassifier: "AutoModelForTokenClassification",
    SequenceClassifier: "AutoModelForSequenceClassification",
    ProcessRewardModel: "ProcessRewardModel",
    StepValueModel: "StepValueModel",
}
"""The class in transformers, or in `transformers_heads`, of each layout, for checkpoints that are not plain."""


def load_complete(layout: Callable[[Config], nn.Module], source: str, label: str, dtype: torch.dtype) -> Any:
    """Loads a model of this layout on the CPU, in evaluation mode and without gradients.

    dtype  where transformers loads it; a plain checkpoint has that of its file

    Raises: ValueError if weights are missing: transformers would fill them with random numbers.
    """
    model = load_plain_model(source, layout)
    if model is not None:
        return model
    # here: a plain checkpoint loads without the model classes of transformers, whose import takes a second
    from reason.scorers.transformers_heads import load_with_transformers

    return load_with_transformers(BY_TRANSFORMERS[layout], source, label, dtype)


def read_family(source: str) -> str:
    """Returns the family of the trunk at `source`, a folder or a hub id; a Mistral counts as a Llama."""
    file = Path(source) / "config.json"
    if file.is_file():
        family = str(json.loads(file.read_text(encoding="utf-8")).get("model_type"))
        return "llama" if family == "mistral" else family
    # here, as above
    from reason.scorers.transformers_heads import load_trunk_config

    return str(load_trunk_config(source).model_type)

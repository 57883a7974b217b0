"""Turn a language model into a reward model: fresh layers on top that judge what the trunk knows."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch


def verifier_on(trunk: Any, judging_layers: int) -> Any:
    """A two-label token classifier (0 wrong, 1 right): `trunk`, frozen, with `judging_layers` trainable layers on it.

    The trunk's top knows which token it expected next; a judging layer can look at that from the following position
    and compare it with the token that came. Frozen, the trunk keeps its arithmetic, and training costs half as much.
    The fresh layers start as the identity.
    """
    from transformers import Qwen2ForTokenClassification

    config = deepcopy(trunk.config)
    depth = config.num_hidden_layers
    config.num_hidden_layers = depth + judging_layers
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    config.architectures = ["Qwen2ForTokenClassification"]
    config.num_labels = 2
    config.id2label, config.label2id = {0: "wrong", 1: "right"}, {"wrong": 0, "right": 1}
    config.classifier_dropout = 0.0
    model: Any = Qwen2ForTokenClassification(config)
    model.model.load_state_dict(trunk.model.state_dict(), strict=False)
    for parameter in (model.model.embed_tokens, *model.model.layers[:depth]):
        parameter.requires_grad_(False)
    for layer in model.model.layers[depth:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model

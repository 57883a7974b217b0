"""Layers of the reward-model heads that checkpoints on the hub have, in the layout of their weights' names.

One definition for both users: the scorer in this process and the models that SGLang serves (`sglang_plugin/models`).
"""

from __future__ import annotations

from torch import nn


def process_reward_layers(hidden_size: int) -> nn.Sequential:
    """Returns the head of Qwen2.5-Math-PRM, `[.., hidden_size]` to two classes: weights `0.*` and `2.*`."""
    return nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 2))


def step_value_layers(hidden_size: int) -> nn.ModuleDict:
    """Returns the head of Skywork-o1-Open-PRM, `[.., hidden_size]` to one value: weights `summary.*`."""
    return nn.ModuleDict({"summary": nn.Linear(hidden_size, 1)})

"""Loads the reward models that `head_modules` cannot load by itself, with the model classes of transformers.

Importing those classes takes more than a second: import this module inside functions only.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoConfig, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from decoding.model.reward_heads import process_reward_layers, step_value_layers
from reason.models.loading import hidden_progress_bars


class QwenProcessReward(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The layout of `head_modules.ProcessRewardModel`."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.score = process_reward_layers(config.hidden_size)
        self.post_init()


class QwenStepValue(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The layout of `head_modules.StepValueModel`."""

    _keys_to_ignore_on_load_unexpected = (r"lm_head\..*",)

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.v_head = step_value_layers(config.hidden_size)
        self.post_init()


OURS = {"ProcessRewardModel": QwenProcessReward, "StepValueModel": QwenStepValue}


def load_trunk_config(source: str) -> PretrainedConfig:
    """Returns the checkpoint's config.

    A Mistral is returned as a Llama: same weights, same names, and same arithmetic for inputs within its window, where
    `read_limit` keeps them.
    """
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if config.model_type != "mistral":
        return config
    values = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "sliding_window")}
    return LlamaConfig(**values)


def load_with_transformers(name: str, source: str, label: str, dtype: torch.dtype) -> Any:
    """Loads the model as `head_modules.load_complete` does; `name` is a class in transformers, or one of `OURS`."""
    model_class: Any = OURS[name] if name in OURS else getattr(transformers, name)
    config = load_trunk_config(source)
    with hidden_progress_bars():
        model, info = model_class.from_pretrained(source, config=config, dtype=dtype, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{source} is not a complete {label} checkpoint: it lacks {', '.join(missing[:4])}")
    return model.eval().requires_grad_(False)

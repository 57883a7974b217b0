"""Load a reward model as two parts: a trunk that makes hidden states and a head that makes outputs of them.

Kept apart so that the engine's own reader can run the trunk over its prefix cache. Imports torch: import this
module inside functions only. No code from a checkpoint's repository is ever run; the two layouts that
transformers does not know are written down here.

Shapes: hidden states `[T, D]`, outputs `[T, outputs]`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    LlamaConfig,
    Qwen2Model,
    Qwen2PreTrainedModel,
)

from decoding.core import Tokens
from reason.scorers.base import HeadKind


class Parts(NamedTuple):
    """`trunk` is a transformers base model (what `AutoModel` gives), `head` maps its last hidden state."""

    trunk: Any
    head: nn.Module
    outputs: int


class ProcessReward(Qwen2PreTrainedModel):  # type: ignore[misc]
    """Layout of Qwen2.5-Math-PRM: `model.*`, then `score.0` and `score.2` with a ReLU between; two outputs."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        width = config.hidden_size
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.post_init()


class StepValue(Qwen2PreTrainedModel):  # type: ignore[misc]
    """Layout of Skywork-o1-Open-PRM: `model.*` and `v_head.summary`; one output. An `lm_head` is left aside."""

    _keys_to_ignore_on_load_unexpected = (r"lm_head\..*",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.v_head = nn.ModuleDict({"summary": nn.Linear(config.hidden_size, 1)})
        self.post_init()


class Words(nn.Module):
    """The rows of a language model's head for a few words: their logits without computing all the others."""

    def __init__(self, lm_head: nn.Linear, words: Tokens) -> None:
        super().__init__()
        rows = list(words)
        self.weight = nn.Parameter(lm_head.weight.detach()[rows].clone(), requires_grad=False)
        self.bias = None if lm_head.bias is None else nn.Parameter(lm_head.bias.detach()[rows], requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[T, D]` to `[T, len(words)]`."""
        return nn.functional.linear(hidden, self.weight, self.bias)


def open_config(source: str) -> Any:
    """The checkpoint's config. A Mistral comes back as the Llama it is on inputs no longer than its window: same
    weights, same names, same arithmetic (`token_limit` keeps inputs inside the window)."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if config.model_type != "mistral":
        return config
    own = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "sliding_window")}
    return LlamaConfig(**own)


def open_parts(source: str, kind: HeadKind, words: Tokens, *, dtype: torch.dtype) -> Parts:
    """The parts of the checkpoint at `source`, on the CPU, in evaluation mode.

    Raises: ValueError if the checkpoint lacks weights its layout needs or has another number of outputs.
    """
    whole = ("next_token", "token_statistics")
    loaders = {
        "process_reward": ProcessReward,
        "step_value": StepValue,
        "two_words": AutoModelForCausalLM,
        **dict.fromkeys(whole, AutoModelForCausalLM),
    }
    loader = loaders.get(kind, AutoModelForTokenClassification)
    model, info = loader.from_pretrained(source, config=open_config(source), dtype=dtype, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{source} is not a complete {kind} checkpoint: it lacks {', '.join(missing[:4])}")
    model.eval().requires_grad_(False)
    if kind == "process_reward":
        return Parts(model.model, model.score, 2)
    if kind == "step_value":
        return Parts(model.model, model.v_head["summary"], 1)
    if kind in whole:
        return Parts(model.model, model.lm_head, model.config.vocab_size)
    if kind == "two_words":
        return Parts(model.model, Words(model.lm_head, words), len(words))
    if model.config.num_labels != 2:
        raise ValueError(f"{source} has {model.config.num_labels} labels, a step classifier has 2 (wrong, right)")
    return Parts(model.model, model.score, 2)

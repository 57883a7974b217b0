"""Language models whose logits of two tokens are the outputs of a reward head.

To SGLang such a model generates text: token 0 and token 1 have the head's outputs for logits, and no other token can
come. So a request that asks how likely these two were after every token gets the head's outputs, by the radix cache and
in chunks like any prompt, behind a router too; SGLang's own pooling of heads does none of this.

A head of one output has 0 for its second, which leaves their difference as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.qwen3 import Qwen3ForCausalLM
from torch import nn

from decoding.model.reward_heads import process_reward_layers, step_value_layers

NEVER_LOGIT = -1e4  # the logit of every other token


class LabelHead(nn.Module):
    """The language model head for SGLang: `[V, 3]` makes logits of two outputs and a 1."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        weight = torch.tensor([[0.0, 0.0, NEVER_LOGIT]]).repeat(vocab_size, 1)
        weight[:2] = torch.eye(3)[:2]
        self.weight = nn.Parameter(weight, requires_grad=False)


class HeadedLogitsProcessor(nn.Module):
    """SGLang's logits processor with the reward head before it."""

    def __init__(self, config: Any, head: nn.Module) -> None:
        super().__init__()
        self._head = (head,)  # in a tuple, for its weights belong to the model under the name that checkpoints have
        # Every rank has the whole of `LabelHead`.
        self.then = LogitsProcessor(config, skip_all_gather=True)

    def forward(
        self, input_ids: torch.Tensor, hidden_TD: torch.Tensor, label_head: LabelHead, *more: Any, **named: Any
    ) -> Any:
        out = self._head[0](hidden_TD)
        ones = torch.ones_like(out[..., :1])
        pair = out if out.shape[-1] == 2 else torch.cat([out, 0 * ones], dim=-1)
        return self.then(input_ids, torch.cat([pair, ones], dim=-1), label_head, *more, **named)


class RewardHeadMixin:
    """Mixin that gives a causal language model a reward head.

    `head` makes the module called `head_name` in checkpoints.
    """

    head_name = "score"

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)  # type: ignore[call-arg]  # the model it is mixed into
        head = self.head(config)
        setattr(self, self.head_name, head)
        last = head["summary"] if isinstance(head, nn.ModuleDict) else head
        self.lm_head, self.logits_processor = LabelHead(config.vocab_size), HeadedLogitsProcessor(config, last)

    @staticmethod
    def head(config: Any) -> nn.Module:
        """Two classes, read off the last hidden state."""
        return nn.Linear(config.hidden_size, 2)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises: ValueError if the head is not among them; random weights would score too."""
        start = f"{self.head_name}."
        required = {start + name for name, _ in getattr(self, self.head_name).named_parameters()}
        body = [(name, weight) for name, weight in weights if not name.startswith("lm_head.")]
        if missing := sorted(required - {name for name, _ in body}):
            raise ValueError(f"the checkpoint lacks {', '.join(missing)}")
        super().load_weights(body)  # type: ignore[misc]


class Qwen2ForProcessRewardModel(RewardHeadMixin, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2.5-Math-PRM."""

    @staticmethod
    def head(config: Any) -> nn.Module:
        return process_reward_layers(config.hidden_size)


class Qwen2ForPrmModel(RewardHeadMixin, Qwen2ForCausalLM):  # type: ignore[misc]
    """Skywork-o1-Open-PRM."""

    head_name = "v_head"

    @staticmethod
    def head(config: Any) -> nn.Module:
        return step_value_layers(config.hidden_size)


class Qwen2ForTokenClassification(RewardHeadMixin, Qwen2ForCausalLM):  # type: ignore[misc]
    """Trained with TRL."""


class Qwen3ForTokenClassification(RewardHeadMixin, Qwen3ForCausalLM):  # type: ignore[misc]
    """Trained with TRL."""


class LlamaForTokenClassification(RewardHeadMixin, LlamaForCausalLM):  # type: ignore[misc]
    """Trained with TRL."""


class MistralForTokenClassification(LlamaForTokenClassification):
    """Trained with TRL; to SGLang a Mistral is a Llama."""


EntryClass = [
    Qwen2ForProcessRewardModel,
    Qwen2ForPrmModel,
    Qwen2ForTokenClassification,
    Qwen3ForTokenClassification,
    LlamaForTokenClassification,
    MistralForTokenClassification,
]

"""Language models whose logits of two tokens are the outputs of a reward head.

For SGLang such a model generates text: the logits of token 0 and token 1 are the head's outputs, and no other token is
possible. So a request for the log-probabilities of these two after every token returns the head's outputs, with the
radix cache, chunked prefill and a router; SGLang's own pooling of heads supports none of them.

A head with one output gets 0 as its second, which leaves their difference unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.qwen3 import Qwen3ForCausalLM
from torch import nn

from decoding.model.reward_heads import process_reward_layers, step_value_layers

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from transformers import PretrainedConfig

NEVER_LOGIT = -1e4  # the logit of every other token


class LabelHead(nn.Module):
    """Language model head for SGLang: its weight `[V, 3]` maps two outputs and a 1 to logits."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        weight = torch.tensor([[0.0, 0.0, NEVER_LOGIT]]).repeat(vocab_size, 1)
        weight[:2] = torch.eye(3)[:2]
        self.weight = nn.Parameter(weight, requires_grad=False)
        # SGLang copies the embedding to what is called lm_head.weight, where the configuration ties the two.
        self.weight.weight_loader = _keep_weight  # type: ignore[attr-defined]


def _keep_weight(weight: nn.Parameter, loaded_weight: torch.Tensor) -> None:
    """Loads nothing: the weight is complete."""


class HeadedLogitsProcessor(nn.Module):
    """Applies the reward head before SGLang's logits processor."""

    def __init__(self, config: PretrainedConfig, head: nn.Module) -> None:
        super().__init__()
        # A tuple hides it from `nn.Module`: its weights belong to the model, under the checkpoint's name.
        self._head = (head,)
        # Every rank has the whole `LabelHead`, so there are no parts to gather.
        self.processor = LogitsProcessor(config, skip_all_gather=True)

    def forward(
        self,
        input_ids: torch.Tensor,
        hidden_TD: torch.Tensor,
        label_head: LabelHead,
        *arguments: object,
        **named: object,
    ) -> LogitsProcessorOutput:
        out = self._head[0](hidden_TD)
        ones = torch.ones_like(out[..., :1])
        pair = out if out.shape[-1] == 2 else torch.cat([out, 0 * ones], dim=-1)
        return self.processor(input_ids, torch.cat([pair, ones], dim=-1), label_head, *arguments, **named)


class RewardHeadMixin:
    """Mixin that gives a causal language model a reward head.

    `make_head` returns the module, which checkpoints call `head_name`.
    """

    head_name = "score"

    def __init__(self, config: PretrainedConfig, quant_config: object = None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)  # type: ignore[call-arg]  # the model it is mixed into
        head = self.make_head(config)
        setattr(self, self.head_name, head)
        last = head["summary"] if isinstance(head, nn.ModuleDict) else head
        self.lm_head, self.logits_processor = LabelHead(config.vocab_size), HeadedLogitsProcessor(config, last)

    @staticmethod
    def make_head(config: PretrainedConfig) -> nn.Module:
        """Returns a linear layer from the last hidden state to two classes."""
        return nn.Linear(config.hidden_size, 2)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Loads a checkpoint. Raises: ValueError if it lacks the head, because random weights would give scores too."""
        start = f"{self.head_name}."
        required = {start + name for name, _ in getattr(self, self.head_name).named_parameters()}
        body = [(name, weight) for name, weight in weights if not name.startswith("lm_head.")]
        if missing := sorted(required - {name for name, _ in body}):
            raise ValueError(f"the checkpoint lacks {', '.join(missing)}")
        super().load_weights(body)  # type: ignore[misc]


class Qwen2ForProcessRewardModel(RewardHeadMixin, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2.5-Math-PRM."""

    @staticmethod
    def make_head(config: PretrainedConfig) -> nn.Module:
        return process_reward_layers(config.hidden_size)


class Qwen2ForPrmModel(RewardHeadMixin, Qwen2ForCausalLM):  # type: ignore[misc]
    """Skywork-o1-Open-PRM."""

    head_name = "v_head"

    @staticmethod
    def make_head(config: PretrainedConfig) -> nn.Module:
        return step_value_layers(config.hidden_size)


class Qwen2ForTokenClassification(RewardHeadMixin, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2 reward models of TRL."""


class Qwen3ForTokenClassification(RewardHeadMixin, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3 reward models of TRL."""


class LlamaForTokenClassification(RewardHeadMixin, LlamaForCausalLM):  # type: ignore[misc]
    """Llama reward models of TRL."""


class MistralForTokenClassification(LlamaForTokenClassification):
    """Mistral reward models of TRL; SGLang's Mistral is its Llama."""


EntryClass = [
    Qwen2ForProcessRewardModel,
    Qwen2ForPrmModel,
    Qwen2ForTokenClassification,
    Qwen3ForTokenClassification,
    LlamaForTokenClassification,
    MistralForTokenClassification,
]

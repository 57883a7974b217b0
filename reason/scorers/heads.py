"""Kinds of reward-model heads: how each is loaded, how its outputs are read in this process and from SGLang servers.

Imports no torch until weights are loaded; the modules themselves are in `head_modules.py`. A new kind is a subclass of
`RewardHead`, here or in a plugin, and an adapter whose `head` it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from decoding.core import Reader, Tokens

if TYPE_CHECKING:  # torch, and the packages of the server client
    import torch

    from decoding.prefill import OutputReducer
    from reason.engines.sglang_client.head_queries import HeadQuery
    from reason.scorers.head_modules import ModelParts


class ClosableReader(Reader, Protocol):
    """A reader that owns weights or connections."""

    def close(self) -> None:
        """Frees them."""
        ...


class RewardHead:
    """Turns hidden states into outputs.

    label                 its name in errors
    needs_sglang_plugin   whether servers need the model classes of `decoding/sglang_plugin/models`
    """

    label: ClassVar[str]
    needs_sglang_plugin: ClassVar[bool] = False

    def load_parts(self, source: str, label_token_ids: Tokens, dtype: torch.dtype) -> ModelParts:
        """Loads the checkpoint at `source` on the CPU, in evaluation mode; it may have the dtype of its file.

        Raises: ValueError if it lacks weights of this head or has another number of outputs.
        """
        raise NotImplementedError

    def make_reducer(self) -> OutputReducer | None:
        """Returns what reduces the head's outputs on their device to those that formats get; None: these are they."""
        return None

    def build_query(self, label_token_ids: Tokens) -> HeadQuery:
        """Returns the query for these outputs to an SGLang server. Raises: ValueError where a server returns none."""
        raise ValueError(f"adapter: a server does not return {self.label}; choose a scorer in this process")


class ServedHead(RewardHead):
    """A head with outputs of its own, which SGLang serves with `decoding/sglang_plugin/models`.

    num_outputs   1 (a value) or 2 (classes)
    """

    num_outputs: ClassVar[int]
    needs_sglang_plugin: ClassVar[bool] = True

    def build_query(self, label_token_ids: Tokens) -> HeadQuery:
        """See `RewardHead`."""
        from reason.engines.sglang_client.head_queries import RewardHeadQuery

        return RewardHeadQuery(num_outputs=self.num_outputs)


class ProcessRewardHead(ServedHead):
    """Two classes from two layers with a ReLU between: Qwen2.5-Math-PRM."""

    label, num_outputs = "process_reward", 2

    def load_parts(self, source: str, label_token_ids: Tokens, dtype: torch.dtype) -> ModelParts:
        """See `RewardHead`."""
        from reason.scorers.head_modules import ModelParts, ProcessRewardModel, load_complete

        model = load_complete(ProcessRewardModel, source, self.label, dtype)
        return ModelParts(model.model, model.score)


class StepValueHead(ServedHead):
    """One value: Skywork-o1-Open-PRM."""

    label, num_outputs = "step_value", 1

    def load_parts(self, source: str, label_token_ids: Tokens, dtype: torch.dtype) -> ModelParts:
        """See `RewardHead`."""
        from reason.scorers.head_modules import ModelParts, StepValueModel, load_complete

        model = load_complete(StepValueModel, source, self.label, dtype)
        return ModelParts(model.model, model.v_head["summary"])


class TokenClassesHead(ServedHead):
    """Two classes from one layer: `...ForTokenClassification`."""

    label, num_outputs = "token_classes", 2

    def load_parts(self, source: str, label_token_ids: Tokens, dtype: torch.dtype) -> ModelParts:
        """See `RewardHead`."""
        from reason.models.plain_checkpoint import PlainClassifier
        from reason.scorers.head_modules import ModelParts, load_complete

        model = load_complete(PlainClassifier, source, self.label, dtype)
        if model.config.num_labels != 2:
            raise ValueError(f"{source} has {model.config.num_labels} labels, a step classifier has 2 (wrong, right)")
        return ModelParts(model.model, model.score)


class SequenceClassesHead(RewardHead):
    """One value or two classes from one layer without a bias: `...ForSequenceClassification`."""

    label = "sequence_classes"

    def load_parts(self, source: str, label_token_ids: Tokens, dtype: torch.dtype) -> ModelParts:
        """See `RewardHead`."""
        from reason.scorers.head_modules import ModelParts, SequenceClassifier, load_complete

        model = load_complete(SequenceClassifier, source, self.label, dtype)
        if model.config.num_labels not in (1, 2):
            raise ValueError(f"{source} has {model.config.num_labels} labels, an outcome reward model has 1 or 2")
        return ModelParts(model.model, model.score)


class LabelTokensHead(RewardHead):
    """The logits of two label tokens in a language model."""

    label = "label_tokens"

    def load_parts(self, source: str, label_token_ids: Tokens, dtype: torch.dtype) -> ModelParts:
        """See `RewardHead`."""
        from reason.models.plain_checkpoint import PlainLanguageModel
        from reason.scorers.head_modules import LabelTokenHead, ModelParts, load_complete

        model = load_complete(PlainLanguageModel, source, self.label, dtype)
        return ModelParts(model.model, LabelTokenHead(model.lm_head, label_token_ids))

    def build_query(self, label_token_ids: Tokens) -> HeadQuery:
        """See `RewardHead`."""
        from reason.engines.sglang_client.head_queries import LabelTokensQuery

        return LabelTokensQuery(label_token_ids)


class TokenStatisticsHead(RewardHead):
    """log p(token), log max p and entropy of every token under a language model, three outputs."""

    label = "token_statistics"

    def load_parts(self, source: str, label_token_ids: Tokens, dtype: torch.dtype) -> ModelParts:
        """See `RewardHead`."""
        from reason.models.plain_checkpoint import PlainLanguageModel
        from reason.scorers.head_modules import ModelParts, load_complete

        model = load_complete(PlainLanguageModel, source, self.label, dtype)
        return ModelParts(model.model, model.lm_head)

    def make_reducer(self) -> OutputReducer:
        """See `RewardHead`."""
        from reason.scorers.token_statistics import token_statistics

        return token_statistics


class NextTokenHead(TokenStatisticsHead):
    """log(p(token) / max p) of every token under a language model, one output."""

    label = "next_token"

    def make_reducer(self) -> OutputReducer:
        """See `RewardHead`."""
        from reason.scorers.token_statistics import log_ratio

        return log_ratio

    def build_query(self, label_token_ids: Tokens) -> HeadQuery:
        """See `RewardHead`."""
        from reason.engines.sglang_client.head_queries import ExpectationQuery

        return ExpectationQuery()

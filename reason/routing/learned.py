"""Routes by the predicted advantage of the target model: the router of Arbitrage (arXiv 2512.05033).

A classifier reads the prompt, the previous steps and the small model's step, and answers at its last token. The other
kind is a small head on features that a language model computes of the step (`features.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from decoding.core import Tokens
from decoding.model.backend import NUMERICS_CHOICES
from decoding.validation import require_choice, require_count, require_share
from reason.models.checkpoint import Checkpoint, find_model
from reason.models.tokenizer import PretrainedTokenizer
from reason.routing.base import RoutingContext, RoutingDecision, StepsRead, score_step
from reason.routing.classifier import RouterClassifier
from reason.routing.features import MODEL_TYPE, StepFeatureAdapter, StepFeatureHead
from reason.scorers.base import PrmAdapter
from reason.scorers.prm import PrmScorer
from search.strategy import StepScorer


class LearnedRouter:
    """The target model writes the step if its own would be better with a probability above `threshold`.

    path        output of `scripts/train_router.py`: a folder, a hub id or bundled:NAME. Either a
                `...ForTokenClassification` checkpoint of two labels, which reads the target model's tokens or text of
                its own (`classifier.py`), or a head on the features that a language model computes, which shares the
                target model's tokens
    threshold   a probability in [0, 1]
    device, dtype, numerics, kv_mib   as of a scorer
    """

    needs_small_model: ClassVar[bool] = True
    needs_scorer: ClassVar[bool] = False
    needs_logprobs: ClassVar[bool] = False
    num_top: ClassVar[int] = 0

    def __init__(
        self,
        *,
        path: str,
        threshold: float = 0.5,
        device: str = "auto",
        dtype: str = "auto",
        numerics: str = "fast",
        kv_mib: int = 256,
    ) -> None:
        require_share("threshold", threshold)
        require_choice("numerics", numerics, NUMERICS_CHOICES)
        require_count("kv_mib", kv_mib, at_least=1)
        self.threshold = threshold
        self.path, self.device, self.dtype, self.kv_mib = path, device, dtype, kv_mib
        self.numerics = numerics

    @cached_property
    def _model(self) -> PrmScorer:
        """The classifier, or the language model with the head on its features."""
        checkpoint = find_model(self.path, key="router.path")
        adapter: PrmAdapter = RouterClassifier.from_config(checkpoint.config)
        path = self.path
        if checkpoint.config.get("model_type") == MODEL_TYPE:
            step_head = StepFeatureHead.load(Path(checkpoint.source), checkpoint.config)
            adapter, path = StepFeatureAdapter(step_head=step_head), step_head.base
        return PrmScorer(
            adapter=adapter,
            path=path,
            device=self.device,
            dtype=self.dtype,
            numerics=self.numerics,
            kv_mib=self.kv_mib,
            group="router",
        )

    def validate(self, target: Checkpoint) -> None:
        """See `base.Router`."""
        self._model.validate()
        self._model.validate_writer(target)

    def load(self, tokenizer: PretrainedTokenizer) -> None:
        """See `base.Router`."""
        self._model.load(tokenizer)

    def bind(self, question: str, prompt: Tokens) -> BoundLearnedRouter:
        """See `base.Router`."""
        return BoundLearnedRouter(self.threshold, self._model.bind(question, prompt))

    def close(self) -> None:
        """See `base.Router`."""
        self._model.close()


@dataclass(frozen=True)
class BoundLearnedRouter:
    """The router of one problem; it reads every step once."""

    threshold: float
    model: StepScorer
    steps_read: ClassVar[StepsRead] = "small"

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        """A step beyond the model's window has no number, and the target model writes it."""
        assert context.small_step is not None
        gain, usage = await score_step(self.model, context.previous_steps, context.small_step)
        return RoutingDecision("target" if gain is None or gain > self.threshold else "draft", gain, usage)

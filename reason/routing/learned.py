"""Arbitrage's own router: a classifier of how likely the large model would write better (arXiv 2512.05033).

It reads the prompt, the steps so far and the small model's step, and answers at its last token; or it tells by what a
language model saw in the step (`evidence.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from decoding.core import Tokens
from decoding.validation import require_share
from reason.models.checkpoint import Checkpoint, find_model
from reason.routing.base import Crossroads, Needs, Verdict
from reason.routing.features import KIND, EvidenceHead, StepEvidence
from reason.routing.scoring import score_step
from reason.scorers.base import Adapter
from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.prm import PrmScorer
from search.strategy import StepScorer


class Learned:
    """The large model writes the step if the classifier finds that more than `threshold` likely to be better.

    path        what `scripts/train_router.py` makes: a folder, a hub id or bundled:NAME. Either a
                `...ForTokenClassification` checkpoint of two labels that shares the writers' tokens, or a head on the
                evidence of a language model that does
    threshold   in [0, 1]
    device, dtype, kv_mib   as for a scorer
    """

    needs_scorer = False

    def __init__(
        self, *, path: str, threshold: float = 0.5, device: str = "auto", dtype: str = "auto", kv_mib: int = 256
    ) -> None:
        require_share("threshold", threshold)
        self.threshold = threshold
        self.path, self.device, self.dtype, self.kv_mib = path, device, dtype, kv_mib

    @cached_property
    def _model(self) -> PrmScorer:
        """The classifier, or the language model with the head that reads its evidence."""
        found = find_model(self.path, key="router.path")
        adapter: Adapter = TokenClassifier(reads="tokens")
        path = self.path
        if found.config.get("model_type") == KIND:
            head = EvidenceHead.load(Path(found.source), found.config)
            adapter, path = StepEvidence(judge=head), head.base
        return PrmScorer(
            adapter=adapter, path=path, device=self.device, dtype=self.dtype, kv_mib=self.kv_mib, group="router"
        )

    def check(self, writer: Checkpoint) -> None:
        """See `base.Router`."""
        self._model.check()
        self._model.check_writer(writer)

    def load(self, writer: Any) -> None:
        """See `base.Router`."""
        self._model.load(writer)

    def bind(self, question: str, prompt: Tokens) -> BoundLearned:
        """See `base.Router`."""
        return BoundLearned(self.threshold, self._model.bind(question, prompt))

    def close(self) -> None:
        """See `base.Router`."""
        self._model.close()


@dataclass(frozen=True)
class BoundLearned:
    """The router of one problem; every step is read once."""

    threshold: float
    model: StepScorer
    needs: ClassVar[Needs] = "draft"

    async def read(self, at: Crossroads) -> Verdict:
        """Beyond the reader's window there is no number, and the large model writes."""
        assert at.draft is not None
        likely, spent = await score_step(self.model, at.before, at.draft)
        return Verdict("target" if likely is None or likely > self.threshold else "draft", likely, spent)

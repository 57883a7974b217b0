"""Arbitrage's own router: a classifier of how likely the large model would write better (arXiv 2512.05033).

It reads the prompt, the steps so far and the small model's step, and answers at its last token; or it tells by what a
language model saw in the step (`evidence.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from decoding.core import Spent, Tokens
from reason.arbitrage.base import Crossroads, Needs, Verdict
from reason.arbitrage.evidence import KIND, BoundEvidence, EvidenceHead, StepEvidence
from reason.arbitrage.scoring import score_step
from reason.checkpoint import Checkpoint, find_model
from reason.prm.base import Adapter
from reason.prm.scorer import PrmScorer
from reason.prm.token_classification import TokenClassifier
from search.knobs import require_share
from search.tree import Step


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
    def _head(self) -> EvidenceHead | None:
        """None if the checkpoint is a classifier."""
        found = find_model(self.path, key="router.path")
        return EvidenceHead.load(Path(found.source), found.config) if found.config.get("model_type") == KIND else None

    @cached_property
    def _model(self) -> PrmScorer:
        """The classifier, or what the head reads."""
        head = self._head
        adapter: Adapter = TokenClassifier(reads="tokens") if head is None else StepEvidence()
        path = self.path if head is None else head.base
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
        if self._head is None:
            return BoundLearned(self.threshold, partial(score_step, self._model.bind(question, prompt)))
        parts = self._model.loaded
        return BoundLearned(self.threshold, BoundEvidence(self._head, parts.reader, parts.limit, prompt).likely)

    def close(self) -> None:
        """See `base.Router`."""
        self._model.close()


Tell = Callable[[Sequence[Step], Step], Awaitable[tuple[float | None, Spent]]]
"""From the steps before and a step to how likely the large model's would be better, and what reading cost."""


@dataclass(frozen=True)
class BoundLearned:
    """The router of one problem; every step is read once."""

    threshold: float
    tell: Tell
    needs: ClassVar[Needs] = "draft"

    async def read(self, at: Crossroads) -> Verdict:
        """Beyond the reader's window there is no number, and the large model writes."""
        assert at.draft is not None
        likely, spent = await self.tell(at.before, at.draft)
        return Verdict("target" if likely is None or likely > self.threshold else "draft", likely, spent)

"""The draft's own doubt decides, after entropy adaptive decoding (EAD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.validation import require_not_negative
from reason.routing.base import Crossroads, Needs, Stateless, Verdict


@dataclass(frozen=True, kw_only=True)
class Entropy(Stateless):
    """The large model writes the step if the draft was unsure of its own: minus the mean log-probability of the step's
    tokens, an estimate of its entropy, is above `threshold` nats.

    EAD switches between tokens by the entropy of whole distributions; engines hand over what was chosen.
    """

    threshold: float = 0.5
    needs: ClassVar[Needs] = "draft"
    needs_scorer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_not_negative("threshold", self.threshold)

    async def read(self, at: Crossroads) -> Verdict:
        assert at.draft is not None
        mean = at.draft.mean_logprob
        doubt = None if mean is None else -mean
        return Verdict("target" if doubt is None or doubt > self.threshold else "draft", doubt)

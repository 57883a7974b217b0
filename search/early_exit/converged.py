"""Ends a thought once its interim answers agree (Dynasor, arXiv 2412.20993)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.validation import require_count
from search.probes import EarlyExit, Probe, find_agreed_answer


@dataclass(frozen=True, kw_only=True)
class ConvergedAnswers(EarlyExit):
    """Ends a thought when its last `agree` interim answers are the same: Dynasor's consistency of probes.

    Dynasor also leaves out probes in which the model says that it is not sure. Such a probe has no answer here only
    where it writes none.

    >>> rule, seven, eight = ConvergedAnswers(agree=2), Probe(num_tokens=1, answer="7"), Probe(num_tokens=1, answer="8")
    >>> rule.decide([eight, seven]), rule.decide([eight, seven, seven])
    (False, True)
    """

    agree: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("early_exit.agree", self.agree, at_least=1)

    def decide(self, probes: Sequence[Probe]) -> bool:
        """See `EarlyExit`."""
        return find_agreed_answer(probes, self.agree) is not None

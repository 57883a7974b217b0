"""Ends a thought once its interim answers agree (Dynasor, arXiv 2412.20993)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from decoding.validation import require_count, require_words
from search.probes import EarlyExit, Probe, find_agreed_answer


@dataclass(frozen=True, kw_only=True)
class ConvergedAnswers(EarlyExit):
    """Ends a thought when its last `agree` interim answers are the same: Dynasor's consistency of probes.

    doubts  words by which a model doubts its answer. A probe that says one of them beside its answer counts as one
            without an answer, as in Dynasor. With such words a probe writes on behind its answer, for `probe_tokens`
            in all; capitals do not matter

    >>> rule, seven, eight = ConvergedAnswers(agree=2), Probe(num_tokens=1, answer="7"), Probe(num_tokens=1, answer="8")
    >>> rule.decide([eight, seven]), rule.decide([eight, seven, seven])
    (False, True)
    >>> doubted = Probe(num_tokens=2, answer="7", remark=". Hold on, is that so")
    >>> ConvergedAnswers(agree=2, doubts=("hold on",)).decide([seven, doubted])
    False
    """

    agree: int = 3
    doubts: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("early_exit.agree", self.agree, at_least=1)
        require_words("early_exit.doubts", self.doubts, or_empty=True)

    @property
    def reads_remarks(self) -> bool:
        """See `EarlyExit`."""
        return bool(self.doubts)

    def decide(self, probes: Sequence[Probe]) -> bool:
        """See `EarlyExit`."""
        if find_agreed_answer(probes, self.agree) is None:
            return False
        return not any(self._doubt.search(probe.remark) for probe in probes[-self.agree :] if self.doubts)

    @cached_property
    def _doubt(self) -> re.Pattern[str]:
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, self.doubts))})(?!\w)", re.IGNORECASE)

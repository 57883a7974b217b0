"""Ends a thought that repeats its answer, or that does not come to one (TrimR, arXiv 2505.17155)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from decoding.validation import MAX_INT, require_count
from search.probes import EarlyExit, Probe, find_agreed_answer


@dataclass(frozen=True, kw_only=True)
class RedundantThought(EarlyExit):
    """Ends a thought that overthinks or underthinks, after TrimR.

    agree             overthinking: the last `agree` interim answers are the same, and the thought wrote each of them
                      itself since the probe before. What follows only repeats it
    give_up_tokens    underthinking: from this many tokens on, a thought whose answers keep changing ends; None: never
    changes           number of last answers that all differ from the one before (or are missing) in such a thought

    In TrimR a small model reads consecutive thoughts and says whether their answers are the same. Here the probes give
    the answers, and a search for their text says whether the thought wrote them. TrimR's rule against loops is not
    here, and its milder hint before the forced end neither.

    >>> rule, stated = RedundantThought(), Probe(num_tokens=128, answer="7", is_stated=True)
    >>> rule.decide([stated, stated]), rule.decide([stated, Probe(num_tokens=256, answer="7")])
    (True, False)
    """

    agree: int = 2
    give_up_tokens: int | None = 16_384
    changes: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("early_exit.agree", self.agree, at_least=1)
        require_count("early_exit.give_up_tokens", self.give_up_tokens, at_least=1, at_most=MAX_INT, or_null=True)
        require_count("early_exit.changes", self.changes, at_least=1)

    def decide(self, probes: Sequence[Probe]) -> bool:
        """See `EarlyExit`."""
        return self._repeats_answer(probes) or self._keeps_changing(probes)

    def _repeats_answer(self, probes: Sequence[Probe]) -> bool:
        agreed = find_agreed_answer(probes, self.agree)
        return agreed is not None and all(probe.is_stated for probe in probes[-self.agree :])

    def _keeps_changing(self, probes: Sequence[Probe]) -> bool:
        last = probes[-self.changes - 1 :]
        if self.give_up_tokens is None or len(last) <= self.changes or last[-1].num_tokens < self.give_up_tokens:
            return False
        return all(then.answer is None or then.answer != before.answer for before, then in pairwise(last))

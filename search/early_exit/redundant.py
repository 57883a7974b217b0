"""Ends a thought that repeats its answer or itself, or does not come to an answer (TrimR, arXiv 2505.17155)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from decoding.core import Tokens
from decoding.validation import MAX_INT, require_choice, require_count
from search.part_verifier import TEMPLATES, AskVerdict, PartVerifier
from search.probes import EarlyExit, Probe, find_agreed_answer
from search.templates import validate_templates

VERIFIERS = ("probe", "target", "small")


@dataclass(frozen=True, kw_only=True)
class RedundantThought(EarlyExit):
    """Ends a thought that overthinks, underthinks or runs in a loop, after TrimR.

    agree             overthinking: the last `agree` interim answers are the same, and the thought wrote each of them
                      itself since the probe before. What follows only repeats it
    give_up_tokens    underthinking: from this many tokens on, a thought whose answers keep changing ends; None: never
    changes           number of last answers that all differ from the one before (or are missing) in such a thought
    loop_tokens       loops: a thought ends whose last this many tokens are one passage again and again; None: none does
    loop_repeats      how many times the passage must be in these tokens
    verifier          what finds the interim answers. `probe`: probes, and a search for their text says whether the
                      thought wrote them, which is exact and needs no second model. `target` and `small`, as in TrimR: a
                      language model reads the parts of the thought between two turns, and says whether a part has an
                      answer, and whether it is that of the part before. The model that solves, or the one at `small`
    templates         texts of the requests to such a model, to be answered with yes or no. `answer` holds `{part}`,
                      `same` holds `{former}` and `{latter}`; both may hold `{question}`

    A verifier may write `probe_tokens` about a part, half of them for each verdict. Where it says neither yes nor no,
    the thought goes on. A thought that overthinks or underthinks gets the `hint` first, if there is one; a loop is
    ended by force.

    >>> rule, stated = RedundantThought(), Probe(num_tokens=128, answer="7", is_stated=True)
    >>> rule.decide([stated, stated]), rule.decide([stated, Probe(num_tokens=256, answer="7")])
    (True, False)
    """

    agree: int = 2
    give_up_tokens: int | None = 16_384
    changes: int = 4
    loop_tokens: int | None = 256
    loop_repeats: int = 3
    verifier: str = "probe"
    templates: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("early_exit.agree", self.agree, at_least=1)
        require_count("early_exit.give_up_tokens", self.give_up_tokens, at_least=1, at_most=MAX_INT, or_null=True)
        require_count("early_exit.changes", self.changes, at_least=1)
        require_count("early_exit.loop_repeats", self.loop_repeats, at_least=2)
        require_count("early_exit.loop_tokens", self.loop_tokens, at_least=self.loop_repeats, or_null=True)
        require_choice("early_exit.verifier", self.verifier, VERIFIERS)
        if self.verifier_model is not None:
            require_count("early_exit.probe_tokens", self.probe_tokens, at_least=2)
            if self.at != "turns":
                raise ValueError(
                    f"early_exit.verifier={self.verifier} reads the parts of a thought between two turns; set "
                    f"early_exit.at=turns, got {self.at}"
                )
        if self.templates or self.verifier_model is not None:
            try:
                validate_templates(self.templates, TEMPLATES)
            except ValueError as error:
                raise ValueError(f"early_exit.{error}") from None

    @property
    def verifier_model(self) -> str | None:
        """See `EarlyExit`."""
        return None if self.verifier == "probe" else self.verifier

    def make_verifier(self, question: str, ask: AskVerdict) -> PartVerifier | None:
        """See `EarlyExit`."""
        if self.verifier_model is None:
            return None
        return PartVerifier(ask=ask, question=question, templates=self.templates, max_tokens=self.probe_tokens // 2)

    def decide(self, probes: Sequence[Probe]) -> bool:
        """See `EarlyExit`."""
        is_loop = bool(probes) and probes[-1].is_loop
        return is_loop or self._repeats_answer(probes) or self._keeps_changing(probes)

    def is_loop(self, thought: Tokens) -> bool:
        """See `EarlyExit`."""
        if self.loop_tokens is None or len(thought) < self.loop_tokens:
            return False
        return find_period(thought[-self.loop_tokens :]) * self.loop_repeats <= self.loop_tokens

    def _repeats_answer(self, probes: Sequence[Probe]) -> bool:
        agreed = find_agreed_answer(probes, self.agree)
        return agreed is not None and all(probe.is_stated for probe in probes[-self.agree :])

    def _keeps_changing(self, probes: Sequence[Probe]) -> bool:
        last = probes[-self.changes - 1 :]
        if self.give_up_tokens is None or len(last) <= self.changes or last[-1].num_tokens < self.give_up_tokens:
            return False
        if not all(probe.is_read for probe in last):
            return False
        return all(then.answer is None or then.answer != before.answer for before, then in pairwise(last))


def find_period(tokens: Tokens) -> int:
    """Returns the smallest distance at which the tokens repeat themselves to their end; their number if they do not.

    The prefix function of Knuth, Morris and Pratt: linear in the number of tokens.

    >>> find_period((1, 2, 3, 1, 2, 3, 1)), find_period((1, 2, 3, 4)), find_period((5, 5))
    (3, 4, 1)
    """
    borders = [0] * len(tokens)  # of each beginning: the length of its longest proper suffix that it begins with
    for end in range(1, len(tokens)):
        length = borders[end - 1]
        while length and tokens[length] != tokens[end]:
            length = borders[length - 1]
        borders[end] = length + (tokens[length] == tokens[end])
    return len(tokens) - (borders[-1] if borders else 0)

"""Interim answers of thoughts: what a probe of a running thought says, and the rules that end a thought by them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from decoding.core import SamplingParams, Tokens
from decoding.validation import require_choice, require_count, require_text, require_words
from search.part_verifier import AskVerdict, PartVerifier
from search.step_rules.markers import MARKERS

PLACES = ("every", "turns")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An interim answer: what the model writes behind its thought so far and the text that asks for an answer.

    Or what a verifier reads in the thought since the probe before.

    num_tokens  tokens of the thought so far
    answer      in a comparable form; None: it wrote none, or did not finish it. A verifier only compares with the probe
                before: of equal answers, the number of the probe that has it first
    confidence  geometric mean of the probabilities of the answer's tokens, to four decimals; None where unknown
    is_stated   whether the thought itself wrote this answer since the probe before
    remark      what the model wrote around its answer
    is_loop     whether the thought only repeats itself here; it was not asked then, and has no answer
    is_read     False: the verifier gave no verdict, so nothing is known of this answer, or of how it differs
    """

    num_tokens: int
    answer: str | None
    confidence: float | None = None
    is_stated: bool = False
    remark: str = ""
    is_loop: bool = False
    is_read: bool = True


@dataclass(frozen=True, kw_only=True)
class EarlyExit(ABC):
    r"""Decides when a thought has gone on for long enough. A new rule is a file in `search/early_exit/` and a yaml in
    `conf/early_exit/`.

    at            where a thought is probed. `every`: each time it has another `every` tokens, counted from its
                  beginning. `turns`: where one of `markers` begins, as in DEER (arXiv 2504.15895). Siblings are probed
                  at the same places
    every         tokens between two probes; with `turns` the least number, and earlier turns are passed over
    markers       words at which a thought turns, behind white space; the probe does not see the word, the thought that
                  goes on has it
    longest_gap   with `turns`, tokens without a probe after which a thought that does not turn is probed all the same;
                  None: it is not
    probe         text put behind the thought for the probe; the thought itself goes on without it
    probe_tokens  maximum tokens of the answer to a probe
    temperature   of probes; 0 is greedy
    hint          text put in when the thought is to end, so that the model ends it itself, as in TrimR (arXiv
                  2505.17155); None: it is ended by force at once
    hint_tokens   tokens for which a thought may go on behind the hint; then it is ended by force

    Raises: ValueError naming the knob, its constraint and its value.
    """

    at: str = "every"
    every: int = 128
    markers: Sequence[str] = MARKERS
    longest_gap: int | None = 1024
    probe: str = "\n\nThe answer is \\boxed{"
    probe_tokens: int = 32
    temperature: float = 0.0
    hint: str | None = None
    hint_tokens: int = 256

    needs_logprobs: ClassVar[bool] = False
    """Whether the rule reads `Probe.confidence`."""

    def __post_init__(self) -> None:
        require_choice("early_exit.at", self.at, PLACES)
        require_count("early_exit.every", self.every, at_least=1)
        require_words("early_exit.markers", self.markers)
        at_least = self.every if self.at == "turns" else 1
        require_count("early_exit.longest_gap", self.longest_gap, at_least=at_least, or_null=True)
        if not isinstance(self.probe, str) or not self.probe.strip():
            raise ValueError(f"early_exit.probe must be a text that asks for the answer, got {self.probe!r}")
        require_text("early_exit.probe", self.probe)
        require_count("early_exit.probe_tokens", self.probe_tokens, at_least=1)
        if self.hint is not None and (not isinstance(self.hint, str) or not self.hint.strip()):
            raise ValueError(f"early_exit.hint must be a text that asks the model to end, or null, got {self.hint!r}")
        require_text("early_exit.hint", self.hint)
        require_count("early_exit.hint_tokens", self.hint_tokens, at_least=1)
        try:
            SamplingParams(temperature=self.temperature)
        except ValueError as error:
            raise ValueError(f"early_exit.{error}") from None

    @property
    def reads_remarks(self) -> bool:
        """Whether a probe writes on behind its answer, for `probe_tokens` in all: the rule reads `Probe.remark`."""
        return False

    @property
    def verifier_model(self) -> str | None:
        """The model that reads thoughts in the place of probes, `target` or `small`; None: probes are sent."""
        return None

    def make_verifier(self, question: str, ask: AskVerdict) -> PartVerifier | None:
        """Returns what reads the thoughts of one problem; None without a `verifier_model`."""
        del question, ask
        return None

    @abstractmethod
    def decide(self, probes: Sequence[Probe]) -> bool:
        """Returns whether the thought with these probes, in order, ends now. It is asked after every probe."""

    def is_loop(self, thought: Tokens) -> bool:
        """Returns whether a thought only repeats itself at its end. It is asked before every probe."""
        del thought
        return False

    def add_probes(self, max_tokens: int) -> int:
        """Returns the most tokens that a generation of at most `max_tokens` takes together with its probes."""
        return max_tokens - (-max_tokens // self.every) * self.probe_tokens

    def without_probes(self, limit: int) -> int:
        """Returns the most tokens, at least 1, that leave room for their probes within `limit`.

        >>> from search.early_exit.converged import ConvergedAnswers
        >>> rule = ConvergedAnswers(every=10, probe_tokens=4)
        >>> rule.add_probes(20), rule.without_probes(28), rule.without_probes(27), rule.without_probes(32)
        (28, 20, 19, 20)
        """
        blocks, rest = divmod(limit, self.every + self.probe_tokens)
        return max(1, blocks * self.every + max(0, rest - self.probe_tokens))


@dataclass(frozen=True, kw_only=True)
class ThoughtProbes:
    """How the thoughts of one problem are probed, and the rule that ends them.

    tokens       `rule.probe` as the model's tokenizer encodes it
    read_answer  the answer in the text of a probe, in a comparable form, or None
    hint         `rule.hint` as the model's tokenizer encodes it; empty: the rule has none
    verifier     reads the thoughts in the place of probes; None: probes are sent
    """

    rule: EarlyExit
    tokens: Tokens
    read_answer: Callable[[str], str | None]
    hint: Tokens = ()
    verifier: PartVerifier | None = None


def find_agreed_answer(probes: Sequence[Probe], count: int) -> str | None:
    """Returns the answer of the last `count` probes if they have one and the same; None otherwise.

    >>> find_agreed_answer([Probe(num_tokens=n, answer=a) for n, a in enumerate("787")], 2) is None
    True
    """
    answers = {probe.answer for probe in probes[-count:]}
    return answers.pop() if len(probes) >= count and len(answers) == 1 else None

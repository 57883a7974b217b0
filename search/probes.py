"""Interim answers of thoughts: what a probe of a running thought says, and the rules that end a thought by them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from decoding.core import SamplingParams, Tokens
from decoding.validation import require_count, require_text


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An interim answer: what the model writes behind its thought so far and the text that asks for an answer.

    num_tokens  tokens of the thought so far
    answer      in a comparable form; None: it wrote none, or did not finish it
    confidence  geometric mean of the probabilities of the answer's tokens, to four decimals; None where unknown
    is_stated   whether the thought itself wrote this answer since the probe before
    """

    num_tokens: int
    answer: str | None
    confidence: float | None = None
    is_stated: bool = False


@dataclass(frozen=True, kw_only=True)
class EarlyExit(ABC):
    r"""Decides when a thought has gone on for long enough. A new rule is a file in `search/early_exit/` and a yaml in
    `conf/early_exit/`.

    every         a thought is probed each time it has another this many tokens, counted from its beginning: siblings
                  are probed at the same places
    probe         text put behind the thought for the probe; the thought itself goes on without it
    probe_tokens  maximum tokens of the answer to a probe
    temperature   of probes; 0 is greedy

    Raises: ValueError naming the knob, its constraint and its value.
    """

    every: int = 128
    probe: str = "\n\nThe answer is \\boxed{"
    probe_tokens: int = 32
    temperature: float = 0.0

    needs_logprobs: ClassVar[bool] = False
    """Whether the rule reads `Probe.confidence`."""

    def __post_init__(self) -> None:
        require_count("early_exit.every", self.every, at_least=1)
        if not isinstance(self.probe, str) or not self.probe.strip():
            raise ValueError(f"early_exit.probe must be a text that asks for the answer, got {self.probe!r}")
        require_text("early_exit.probe", self.probe)
        require_count("early_exit.probe_tokens", self.probe_tokens, at_least=1)
        try:
            SamplingParams(temperature=self.temperature)
        except ValueError as error:
            raise ValueError(f"early_exit.{error}") from None

    @abstractmethod
    def decide(self, probes: Sequence[Probe]) -> bool:
        """Returns whether the thought with these probes, in order, ends now. It is asked after every probe."""

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
    """

    rule: EarlyExit
    tokens: Tokens
    read_answer: Callable[[str], str | None]


def find_agreed_answer(probes: Sequence[Probe], count: int) -> str | None:
    """Returns the answer of the last `count` probes if they have one and the same; None otherwise.

    >>> find_agreed_answer([Probe(num_tokens=n, answer=a) for n, a in enumerate("787")], 2) is None
    True
    """
    answers = {probe.answer for probe in probes[-count:]}
    return answers.pop() if len(probes) >= count and len(answers) == 1 else None

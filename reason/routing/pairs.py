"""Records both models' steps after the same prefixes, and their quality: the training data of a router."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from decoding.core import Tokens
from reason.routing.base import RoutingContext, RoutingDecision, StatelessRouter, StepsRead
from reason.routing.oracle import OracleRouter, score_both_steps
from reason.runs.json_files import append_json_lines, read_whole_lines

_JSON_KEYS = {  # recorded files have these keys; other fields have their own names
    "small_step": "draft", "target_step": "target", "small_score": "draft_score", "small_truth": "draft_truth",
    "small_entropy": "doubt", "step_lengths": "before",
}  # fmt: skip


@dataclass(frozen=True)
class StepPair:
    """The small and the target model's step after one prefix.

    group          the problem's name
    prefix         token ids of the prompt and the previous steps
    small_entropy  minus the small step's mean log-probability in nats; None if its engine gave none
    step_lengths   lengths in tokens of the previous steps; the prompt is the rest of the prefix
    small_truth, target_truth   share of solutions from that step on with the right answer, see `rollouts.py`; None if
                   not measured
    question       text of the problem; None in files of earlier releases, which have no texts and authors either
    texts          of the previous steps and of the small model's
    authors        of the previous steps: draft or target; None where that is not known
    """

    group: str
    prefix: Tokens
    small_step: Tokens
    target_step: Tokens
    small_score: float
    target_score: float
    small_entropy: float | None
    step_lengths: tuple[int, ...]
    small_truth: float | None = None
    target_truth: float | None = None
    question: str | None = None
    texts: tuple[str, ...] = ()
    authors: tuple[str | None, ...] = ()

    @property
    def score_gain(self) -> float:
        """Score of the target model's step minus that of the small model's."""
        return self.target_score - self.small_score

    @property
    def truth_gain(self) -> float | None:
        """Share of right answers after the target model's step minus that after the small model's; None if unknown."""
        if self.small_truth is None or self.target_truth is None:
            return None
        return self.target_truth - self.small_truth

    def to_json(self) -> dict[str, object]:
        """Returns the pair as plain data, with the keys of recorded files."""
        return {_JSON_KEYS.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, row: dict[str, object]) -> StepPair:
        """Returns the pair that `to_json` wrote. Raises: KeyError or TypeError for another row."""
        names = {_JSON_KEYS.get(field.name, field.name): field.name for field in fields(cls)}
        values = {names[key]: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        return cls(**values)  # type: ignore[arg-type]  # plain data of the types above


class PairCollector(StatelessRouter):
    """Routes as the oracle does (the better step by score is accepted) and records every pair with two scores."""

    steps_read: ClassVar[StepsRead] = "both"
    needs_scorer: ClassVar[bool] = True

    def __init__(self) -> None:
        self._oracle = OracleRouter()
        self._pairs: dict[str, list[StepPair]] = defaultdict(list)

    def take_pairs(self, group: str) -> list[StepPair]:
        """Returns and forgets the pairs of a problem. *Mutates* the collector."""
        return self._pairs.pop(group, [])

    def bind(self, question: str, prompt: Tokens) -> BoundPairCollector:  # type: ignore[override]  # no router itself
        """See `base.Router`."""
        return BoundPairCollector(question, self._oracle, self._pairs)


@dataclass(frozen=True)
class BoundPairCollector:
    """Records the pairs of one problem in `pairs`, by the name of the problem."""

    question: str
    oracle: OracleRouter
    pairs: dict[str, list[StepPair]]
    steps_read: ClassVar[StepsRead] = "both"

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        """See `base.BoundRouter`. *Mutates* `pairs`."""
        assert context.small_step is not None
        assert context.target_step is not None
        small_score, target_score, usage = await score_both_steps(context)
        if small_score is not None and target_score is not None:
            mean_logprob = context.small_step.mean_logprob
            pair = StepPair(
                group=context.group,
                prefix=context.prefix,
                small_step=context.small_step.tokens,
                target_step=context.target_step.tokens,
                small_score=small_score,
                target_score=target_score,
                small_entropy=None if mean_logprob is None else -mean_logprob,
                step_lengths=tuple(len(step.tokens) for step in context.previous_steps),
                question=self.question,
                texts=tuple(step.text for step in (*context.previous_steps, context.small_step)),
                authors=tuple(step.model for step in context.previous_steps),
            )
            self.pairs[context.group].append(pair)
        return self.oracle.choose_better(small_score, target_score, usage)


def append_pairs(file: Path, pairs: Sequence[StepPair]) -> None:
    """Appends the pairs as JSON lines; they are on disk on return. *Mutates* the file. Raises: OutputError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    append_json_lines(file, (pair.to_json() for pair in pairs))


def read_pairs(file: Path) -> Iterator[StepPair]:
    """Yields the pairs of a file without an incomplete last line.

    Raises: ValueError naming any other broken line; OutputError for a link.
    """
    if not file.exists():
        raise ValueError(f"{file}: there is no such file of pairs")
    for number, line in enumerate(read_whole_lines(file), 1):
        try:
            yield StepPair.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}, line {number}: not a pair of steps ({error})") from None

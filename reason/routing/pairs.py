"""What both models would write from the same place, and how good it is: what a router learns from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from decoding.core import Tokens
from reason.routing.base import Crossroads, Needs, Stateless, Verdict
from reason.routing.oracle import Oracle, score_both
from reason.runs.result_file import append_lines, whole_lines


@dataclass(frozen=True)
class Pair:
    """Both steps after one prefix.

    before  the lengths of the steps that end the prefix, in tokens; what comes before them is the prompt
    doubt   minus the draft's mean log-probability, None if it gave none
    truth   how often each step leads to the right answer, see `rollouts.py`; None if that was not tried
    """

    group: str
    prefix: Tokens
    draft: Tokens
    target: Tokens
    draft_score: float
    target_score: float
    doubt: float | None
    before: tuple[int, ...]
    draft_truth: float | None = None
    target_truth: float | None = None

    @property
    def advantage(self) -> float:
        """How much better the large model's step scores."""
        return self.target_score - self.draft_score

    @property
    def gain(self) -> float | None:
        """How much more often the large model's step leads to the right answer; None if that was not tried."""
        if self.draft_truth is None or self.target_truth is None:
            return None
        return self.target_truth - self.draft_truth


class Collector(Stateless):
    """An oracle that remembers every pair with scores, by problem. The better step is followed, as in the paper."""

    needs: ClassVar[Needs] = "both"
    needs_scorer: ClassVar[bool] = True

    def __init__(self) -> None:
        self._oracle = Oracle()
        self._pairs: dict[str, list[Pair]] = defaultdict(list)

    def take(self, group: str) -> list[Pair]:
        """A problem's pairs, which are forgotten here. *Mutates*."""
        return self._pairs.pop(group, [])

    async def read(self, at: Crossroads) -> Verdict:
        assert at.draft is not None
        assert at.target is not None
        draft, target, spent = await score_both(at)
        if draft is not None and target is not None:
            mean = at.draft.mean_logprob
            doubt = None if mean is None else -mean
            tokens = (at.prefix, at.draft.tokens, at.target.tokens)
            before = tuple(len(step.tokens) for step in at.before)
            self._pairs[at.group].append(Pair(at.group, *tokens, draft, target, doubt, before))
        return self._oracle.choose(draft, target, spent)


def append_pairs(file: Path, pairs: Sequence[Pair]) -> None:
    """One JSON line each; they are on disk on return. *Mutates* the file."""
    append_lines(file, map(asdict, pairs))


def read_pairs(file: Path) -> Iterator[Pair]:
    """The pairs of a file. A half-written last line is cut off it. Raises: ValueError naming any other broken line."""
    for number, line in enumerate(whole_lines(file), 1):
        try:
            row = json.loads(line)
            yield Pair(**row | {name: tuple(row[name]) for name in ("prefix", "draft", "target", "before")})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: not a pair of steps ({error})") from None

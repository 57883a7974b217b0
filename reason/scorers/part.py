"""Chooses the part of a solution that a scorer reads: all of it, the answer behind the thought, or a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from reason.thinking import SolutionReader
from search.strategy import ScoredPaths, StepScorer, StepScores
from search.tree import Step

PARTS = ("thought", "answer", "window")


def read_part(scorer: StepScorer, part: str, window: int, reader: SolutionReader) -> StepScorer:
    """Returns a scorer that reads only `part` of each path; `thought` is the whole path.

    Tags are left out of the texts of a model that thinks: reward models do not know them.
    """
    without_tags = scorer if reader.thinking is None else TaglessScorer(scorer, reader)
    if part == "answer" and reader.thinking is not None:
        return AnswerScorer(without_tags, reader)
    return WindowScorer(without_tags, window) if part == "window" else without_tags


@dataclass(frozen=True)
class TaglessScorer:
    """Scores paths whose texts lack the tags of the thought; token ids stay as they are."""

    scorer: StepScorer
    reader: SolutionReader

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        return await self.scorer.score([[self._remove_tags(step) for step in path] for path in paths])

    def _remove_tags(self, step: Step) -> Step:
        text = self.reader.remove_tags(step.text)
        return step if text == step.text else replace(step, text=text)


@dataclass(frozen=True)
class AnswerScorer:
    """Scores the steps behind the thought as if the thought had not been written; its own steps have no score.

    A path inside its thought is not scored.
    """

    scorer: StepScorer
    reader: SolutionReader

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`."""
        answers = [self.reader.drop_thought(path) for path in paths]
        scored = await self.scorer.score([answer for answer in answers if answer])
        scores = iter(scored.scores)
        return replace(
            scored,
            scores=[_pad(next(scores), path) if answer else None for path, answer in zip(paths, answers, strict=True)],
        )


def _pad(scores: StepScores | None, path: Sequence[Step]) -> StepScores | None:
    return None if scores is None else [*[None] * (len(path) - len(scores)), *scores]


@dataclass(frozen=True)
class WindowScorer:
    """Scores each step as the end of the path's last `window` tokens or fewer, cut at the border of a step.

    The window moves by half its length at a time. So the steps of one half are read in one pass, with a prefix that the
    scorer has read before, and each step is read about twice, however long the path is. A step has the same score
    whether its path is scored at once or as it grows. One that is longer than the window is read alone.
    """

    scorer: StepScorer
    window: int

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`. A path is not scored where one of its windows is not."""
        stretches = [self._split(path) for path in paths]
        scored = await self.scorer.score(
            [path[begin:end] for path, parts in zip(paths, stretches, strict=True) for begin, _, end in parts]
        )
        scores = iter(scored.scores)
        return replace(
            scored, scores=[_join([(next(scores), first - begin) for begin, first, _ in parts]) for parts in stretches]
        )

    def _split(self, path: Sequence[Step]) -> list[tuple[int, int, int]]:
        """Returns stretches (begin, first, end): the steps `first` to `end` are scored in the window from `begin`."""
        ends = list(accumulate(len(step.tokens) for step in path))
        starts = [0, *ends[:-1]]
        shift = max(1, self.window // 2)
        stretches: list[tuple[int, int, int]] = []
        begin = 0
        for i, end in enumerate(ends):
            if end - starts[begin] > self.window:
                earliest = -(-(end - self.window) // shift) * shift  # rounded up to a multiple
                begin = next((j for j in range(begin, i) if starts[j] >= earliest), i)
            if stretches and stretches[-1][0] == begin:
                stretches[-1] = (begin, stretches[-1][1], i + 1)
            else:
                stretches.append((begin, i, i + 1))
        return stretches


def _join(parts: Sequence[tuple[StepScores | None, int]]) -> StepScores | None:
    """Joins the scores of stretches, each without those of the steps before it in its window."""
    joined: list[float | None] = []
    for scores, num_before in parts:
        if scores is None:
            return None
        joined += scores[num_before:]
    return joined

"""Scores branches as they are generated; paths that wait together go to the scorer in one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from decoding.core import NO_USAGE, Usage
from search.strategy import ScoredPaths, StepScorer, StepScores
from search.tree import Step, round_score

log = logging.getLogger(__name__)

StepPath = Sequence[Step]


@dataclass(slots=True)  # as `Continuation`
class PathScores:
    """Step scores of one path, None where it is not scored, and its part of the usage."""

    scores: StepScores | None
    usage: Usage


async def score_paths(scorer: StepScorer, paths: Sequence[StepPath]) -> ScoredPaths:
    """Scores paths and rounds the scores. Every score that decides something comes from here."""
    scored = await scorer.score(paths)
    rounded = [
        None if scores is None else [None if score is None else round_score(score) for score in scores]
        for scores in scored.scores
    ]
    return ScoredPaths(rounded, scored.usage)


class ScoreQueue:
    """Batches the scorer calls of one search: paths that arrive during a call wait for the next one.

    Sibling paths share a prefix, which a scorer computes once per call; one call per branch would compute it again
    for each.
    """

    def __init__(self, scorer: StepScorer, timeout: float | None) -> None:
        self._scorer, self._timeout = scorer, timeout
        self._waiting: list[tuple[StepPath, asyncio.Future[PathScores]]] = []
        self._worker: asyncio.Task[None] | None = None

    def score(self, path: StepPath) -> asyncio.Future[PathScores]:
        """Scores one path; it counts as not scored if the call exceeds the timeout.

        What is returned is awaited, at any later time, and raises what the scorer raises.
        """
        future: asyncio.Future[PathScores] = asyncio.get_running_loop().create_future()
        self._waiting.append((path, future))
        # No await between this test and the worker's last look at `_waiting`: a path cannot be left behind.
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._score_waiting())
        return future

    async def _score_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            waiting = [(path, future) for path, future in batch if not future.done()]  # some may be cancelled
            if not waiting:
                continue
            try:
                results = await self._call_scorer([path for path, _ in waiting])
            except Exception as error:  # raised where these scores are awaited
                for _, future in waiting:
                    if not future.done():
                        future.set_exception(error)
                        future.exception()  # asyncio warns of one that is never read, and the search may have ended
                continue
            for (_, future), path_scores in zip(waiting, results, strict=True):
                if not future.done():  # cancelled during the call
                    future.set_result(path_scores)

    async def _call_scorer(self, paths: list[StepPath]) -> list[PathScores]:
        try:
            scored = await self._score_in_time(paths)
        except TimeoutError:
            log.warning("no scores after %s s; %d paths count as not scored", self._timeout, len(paths))
            scored = ScoredPaths([None] * len(paths))
        if len(scored.scores) != len(paths):
            raise ValueError(f"the scorer was given {len(paths)} paths and returned scores for {len(scored.scores)}")
        # The usage is that of the whole call: the first path carries all of it, so that the sum is right. But where
        # each path was scored it counts for itself: then the count of those in the tree does not depend on the calls.
        usage, rest = scored.usage, NO_USAGE
        if usage.scorer_calls == len(paths):
            usage, rest = replace(usage, scorer_calls=1), Usage(scorer_calls=1)
        usages = [usage, *[rest] * (len(paths) - 1)]
        return [PathScores(scores, usage) for scores, usage in zip(scored.scores, usages, strict=True)]

    async def _score_in_time(self, paths: list[StepPath]) -> ScoredPaths:
        if self._timeout is None:
            return await score_paths(self._scorer, paths)
        async with asyncio.timeout(self._timeout):
            return await score_paths(self._scorer, paths)

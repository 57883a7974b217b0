"""Score branches as they are written: whatever waits goes to the scorer in one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Spent
from search.strategy import ScoredPaths, StepScorer
from search.tree import Step

log = logging.getLogger(__name__)

Path = Sequence[Step]


@dataclass(frozen=True)
class Scored:
    """The step scores of one path, None where it has none, and its part of the cost."""

    scores: list[float] | None
    spent: Spent


class ScoreQueue:
    """One search's way to its scorer. While a call is under way, what arrives waits for the next one.

    Siblings often say the same, and a scorer reads what it is given together once; one call per branch would read it
    again and again.
    """

    def __init__(self, scorer: StepScorer, timeout: float | None) -> None:
        self._scorer, self._timeout = scorer, timeout
        self._waiting: list[tuple[Path, asyncio.Future[Scored]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def score(self, path: Path) -> Scored:
        """The path's scores; not scored if the call takes longer than it may. Raises: what the scorer raises."""
        future: asyncio.Future[Scored] = asyncio.get_running_loop().create_future()
        self._waiting.append((path, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            waiting = [(path, future) for path, future in batch if not future.done()]
            try:
                found = await self._call([path for path, _ in waiting])
            except Exception as error:  # it is the waiting ones' to handle
                for _, future in waiting:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), scored in zip(waiting, found, strict=True):
                if not future.done():
                    future.set_result(scored)

    async def _call(self, paths: list[Path]) -> list[Scored]:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._scorer.score(paths)
        except TimeoutError:
            log.warning("no scores after %s s; %d paths count as not scored", self._timeout, len(paths))
            answer = ScoredPaths([None] * len(paths))
        if len(answer.scores) != len(paths):
            raise ValueError(f"the scorer was given {len(paths)} paths and returned scores for {len(answer.scores)}")
        costs = [answer.spent, *[Spent()] * len(paths)]  # of the call as a whole; what counts is that it adds up
        return [Scored(scores, cost) for scores, cost in zip(answer.scores, costs, strict=False)]

"""A batch of continuations that are being generated, and what ends it before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from decoding.core import GenerationRequest
from search.continuation import Continuation
from search.expansion_plan import ExpansionPlan
from search.scoring import PathScores
from search.tree import Step


@dataclass(eq=False)  # as `Continuation`
class ParentPath:
    """The path to a node that is continued, and what all its continuations have in common.

    nodes       of the path, the parent last
    num_tokens  tokens of the path
    room        tokens that a path may still have behind it, by its own limit and the context window
    request     the request of a continuation, but for its seed
    may_go_on   whether nothing but `max_tokens` of the batch limits a continuation
    """

    parent: int
    nodes: list[int]
    steps: list[Step]
    num_tokens: int
    room: int
    request: GenerationRequest
    may_go_on: bool

    @cached_property
    def text(self) -> str:
        """The text of the path, put together once for all of the node's continuations."""
        return "".join(step.text for step in self.steps)


@dataclass(slots=True)  # as `Continuation`
class PendingExpansion:
    """One continuation that is being generated."""

    path: ParentPath
    seed: int
    task: asyncio.Task[Continuation]

    @property
    def parent(self) -> int:
        """The node that it continues."""
        return self.path.parent


@dataclass(eq=False, slots=True)  # as `Continuation`
class ExpansionBatch:
    """Continuations that were started together and are not in the tree yet; empty if the budget affords none.

    refused  the parents whose continuations the budget did not afford
    error    the first one of a continuation or of its scoring, where `end_at_error` looks for it
    """

    pending: list[PendingExpansion]
    plan: ExpansionPlan
    refused: Sequence[int] = ()
    error: BaseException | None = None

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def num_asked(self) -> int:
        """Number of continuations that were asked for, those included that the budget did not afford at once."""
        return len(self.pending) + len(self.refused)

    def end_at_error(self) -> None:
        """Drops all continuations once one has an error, or has had one; the search waits for the first itself.

        *Mutates* `error`.
        """
        for expansion in self.pending[1:]:
            expansion.task.add_done_callback(self._look_at_task)

    def _look_at_task(self, task: asyncio.Task[Continuation]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._end(error)
        elif (scoring := task.result().scoring) is not None:
            scoring.add_done_callback(self._look_at_scoring)

    def _look_at_scoring(self, scoring: asyncio.Future[PathScores]) -> None:
        if not scoring.cancelled() and (error := scoring.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            for expansion in self.pending:
                drop_task(expansion.task)


def drop_task(task: asyncio.Task[Continuation]) -> None:
    """Cancels a task that will not be awaited, or the scoring that it left."""
    if task.done():
        _drop_scoring(task)
    else:
        task.add_done_callback(_drop_scoring)
        task.cancel()


def _drop_scoring(task: asyncio.Task[Continuation]) -> None:
    # retrieving its exception avoids asyncio's warning
    if not task.cancelled() and task.exception() is None and (scoring := task.result().scoring) is not None:
        scoring.cancel()

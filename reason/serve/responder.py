"""What becomes of one search: its answer whole or as a stream, its tree, its place in the counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request

from decoding.core import OversizedRequest
from reason.problem import Solution
from reason.serve import wire
from reason.serve.admission import out_of_time
from reason.serve.choices import Choice, choices_of, search_block, usage_of
from reason.serve.errors import ApiError, failure
from reason.serve.events import Events
from reason.serve.metrics import Metrics
from reason.serve.middleware import GONE
from reason.serve.request import Asked
from reason.serve.trees import Trees
from reason.serve.wire import Wire
from search.strategy import Written

log = logging.getLogger(__name__)


class Outcome:
    """One request's; `identity` is the name of its tree."""

    def __init__(self, asked: Asked, identity: str, form: Wire, trees: Trees, metrics: Metrics) -> None:
        self._asked, self._identity, self._form = asked, identity, form
        self._trees, self._metrics = trees, metrics

    async def whole(self, events: Events) -> dict[str, Any]:
        """The answer in one piece. Raises: ApiError."""
        try:
            async for event in events:
                if isinstance(event, Solution):
                    choices, usage, search = await self._settle(event)
                    return self._form.whole(choices, usage, search)
        except Exception as error:
            raise told(error) from error
        raise AssertionError("a search ends with a solution")

    async def stream(self, request: Request, events: Events) -> AsyncIterator[bytes]:
        """The answer in chunks; an error in the midst is the last of them. *Mutates* the request's state: how it
        really ended, for the counts."""
        request.state.status = GONE
        yield self._form.begin()
        tokens = 0
        try:
            async for event in events:
                if event is None:
                    yield wire.STILL_HERE
                elif isinstance(event, Written):
                    tokens += sum(len(step.tokens) for step in event.steps)
                    yield self._form.progress(event, tokens)
                else:
                    choices, usage, search = await self._settle(event)
                    for chunk in self._form.answer(choices, search):
                        yield chunk
                    if self._asked.with_usage:
                        yield self._form.usage(usage)
                    yield wire.DONE
                    request.state.status = 200
        except Exception as error:
            failed = told(error)
            request.state.status = failed.status
            yield wire.failed(failed.body)

    async def _settle(self, solution: Solution) -> tuple[list[Choice], dict[str, Any], dict[str, Any]]:
        """What is returned of a search that has come to its end: choices, usage, and our own block."""
        asked = self._asked
        choices = choices_of(solution, asked.n, asked.stop)
        usage, block = usage_of(solution, choices), search_block(solution, asked.preset, f"/trees/{self._identity}")
        self._metrics.searched(asked.preset, usage["completion_tokens"])
        log.info("search done", extra=block)
        try:
            await asyncio.to_thread(self._trees.put, self._identity, solution, asked.solver.strategy)
        except OSError:
            log.exception("the tree of %s is not on disk", self._identity)
        if not choices:
            raise out_of_time("before any solution was begun")
        return choices, usage, block


def told(error: Exception) -> ApiError:
    """What a client is told of a search that failed. What is not the client's doing is in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OversizedRequest):
        return ApiError(400, str(error), param="max_tokens", code="context_length_exceeded")
    log.error("a search failed", exc_info=error)
    return failure(error)

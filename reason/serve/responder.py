"""Answers one request from the events of its search, complete or as a stream; stores the tree and counts tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from fastapi import Request

from decoding.core import OversizedRequest
from reason.problem import Solution
from reason.serve import wire
from reason.serve.admission import timeout_error
from reason.serve.choices import (
    CompletionChoice,
    SearchBlock,
    UsageBlock,
    search_block,
    select_choices,
    usage_block,
)
from reason.serve.errors import ApiError, internal_error
from reason.serve.events import SearchEvents
from reason.serve.metrics import ServerMetrics
from reason.serve.middleware import CLIENT_CLOSED_REQUEST
from reason.serve.request import SearchRequest
from reason.serve.trees import TreeStore
from reason.serve.wire import ResponseWriter
from reason.thinking import SolutionReader
from search.strategy import StepEvent

log = logging.getLogger(__name__)


class SearchResponder:
    """Answers one request. `tree_id` is the id of its tree; `lossy` the server's lossy settings."""

    def __init__(
        self,
        request: SearchRequest,
        tree_id: str,
        writer: ResponseWriter,
        trees: TreeStore,
        metrics: ServerMetrics,
        lossy: Sequence[str],
    ) -> None:
        self._request, self._tree_id, self._writer = request, tree_id, writer
        self._trees, self._metrics, self._lossy = trees, metrics, lossy

    async def complete_response(self, events: SearchEvents) -> dict[str, object]:
        """Returns the body of the answer when the search has ended. Raises: ApiError."""
        try:
            async for event in events:
                if isinstance(event, Solution):
                    choices, usage, search = await self._finish_search(event)
                    return self._writer.complete_body(choices, usage, search)
        except Exception as error:
            raise error_for_client(error) from error
        raise AssertionError("a search ends with a solution")

    async def stream_response(self, request: Request, events: SearchEvents) -> AsyncIterator[bytes]:
        """Yields the answer in chunks; an error ends the stream as its last chunk.

        *Mutates* the request's state: the status under which the middleware counts it, which is not the one sent.
        """
        request.state.status = CLIENT_CLOSED_REQUEST
        yield self._writer.first_chunk()
        tokens = 0
        try:
            async for event in events:
                if event is None:
                    yield wire.KEEP_ALIVE
                elif isinstance(event, StepEvent):
                    tokens += sum(len(step.tokens) for step in event.steps)
                    yield self._writer.progress_chunk(event, tokens)
                else:
                    choices, usage, search = await self._finish_search(event)
                    for chunk in self._writer.answer_chunks(choices, search):
                        yield chunk
                    if self._request.with_usage:
                        yield self._writer.usage_chunk(usage)
                    yield wire.DONE
                    request.state.status = 200
        except Exception as error:
            api_error = error_for_client(error)
            request.state.status = api_error.status
            yield wire.error_chunk(api_error.json_body)

    async def _finish_search(self, solution: Solution) -> tuple[list[CompletionChoice], UsageBlock, SearchBlock]:
        request = self._request
        reader = solution.reader if self._writer.chat else SolutionReader()  # /completions return text as it is
        choices = select_choices(solution, request.n, request.stop, reader)
        usage = usage_block(solution, choices)
        search = search_block(solution, request.preset, f"/trees/{self._tree_id}", self._lossy)
        self._metrics.count_tokens(request.preset, usage["completion_tokens"])
        log.info("search done", extra=dict(search))
        try:
            await asyncio.to_thread(self._trees.add_tree, self._tree_id, solution, request.solver.strategy)
        except OSError:
            log.exception("the tree of %s is not on disk", self._tree_id)
        if not choices:
            raise timeout_error("before the first solution was begun")
        return choices, usage, search


def error_for_client(error: Exception) -> ApiError:
    """Returns what a client is sent for a failed search; errors that the request did not cause are logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OversizedRequest):
        return ApiError(400, str(error), param="max_tokens", code="context_length_exceeded")
    log.error("a search failed", exc_info=error)
    return internal_error(error)

"""Answers one request from the events of its search, complete or as a stream; stores the tree and counts tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Protocol

from fastapi import Request

from decoding.core import OversizedRequest
from decoding.validation import shorten
from reason.engines.http.errors import RequestRejected
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
from reason.serve.live_reply import LiveReply
from reason.serve.metrics import ServerMetrics
from reason.serve.middleware import CLIENT_CLOSED_REQUEST
from reason.serve.prices import TokenPrices
from reason.serve.request import SearchRequest
from reason.serve.trees import TreeStore
from reason.thinking import SolutionReader, SplitText
from search.strategy import StepEvent

log = logging.getLogger(__name__)


class ReplyWriter(Protocol):
    """Writes the response to one request in the form of its endpoint."""

    @property
    def chat(self) -> bool:
        """Whether thoughts are apart from the text."""
        ...

    def complete_body(
        self, choices: Sequence[CompletionChoice], usage: UsageBlock, search: SearchBlock
    ) -> dict[str, object]:
        """Returns the body of a response that is not streamed."""
        ...

    def first_chunk(self) -> bytes:
        """Returns what opens a stream."""
        ...

    def progress_chunk(self, event: StepEvent, tokens: int) -> bytes:
        """Returns what a stream says of a new step; `tokens` are all so far."""
        ...

    def live_chunk(self, part: SplitText, sent: LiveReply) -> bytes:
        """Returns what a stream says of the next part of a solution that is being written; `sent` is all so far."""
        ...

    def last_chunks(
        self, choices: Sequence[CompletionChoice], usage: UsageBlock, search: SearchBlock, sent: LiveReply
    ) -> Iterator[bytes]:
        """Yields the answer, without what was sent of it, and the end of a stream."""
        ...

    def error_chunk(self, error: Mapping[str, Mapping[str, str | None]]) -> bytes:
        """Returns what ends a stream with an error, `ApiError.json_body`."""
        ...


class SearchResponder:
    """Answers one request.

    tree_id       id of its tree
    tree_address  where clients find the page of the tree
    lossy         the server's lossy settings
    prices        of its tokens; None: no cost is said
    """

    def __init__(
        self,
        request: SearchRequest,
        tree_id: str,
        tree_address: str,
        writer: ReplyWriter,
        trees: TreeStore,
        metrics: ServerMetrics,
        lossy: Sequence[str],
        prices: TokenPrices | None,
    ) -> None:
        self._request, self._tree_id, self._tree_address, self._writer = request, tree_id, tree_address, writer
        self._trees, self._metrics, self._lossy, self._prices = trees, metrics, lossy, prices

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
        tokens, sent = 0, LiveReply(self._request.stop)
        try:
            async for event in events:
                if event is None:
                    yield wire.KEEP_ALIVE
                elif isinstance(event, StepEvent):
                    tokens += sum(len(step.tokens) for step in event.steps)
                    yield self._writer.progress_chunk(event, tokens)
                elif isinstance(event, SplitText):
                    part = sent.take(event)
                    if part.thought or part.text:
                        yield self._writer.live_chunk(part, sent)
                else:
                    choices, usage, search = await self._finish_search(event)
                    for chunk in self._writer.last_chunks(choices, usage, search, sent):
                        yield chunk
                    request.state.status = 200
        except Exception as error:
            api_error = error_for_client(error)
            request.state.status = api_error.status
            yield self._writer.error_chunk(api_error.json_body)

    async def _finish_search(self, solution: Solution) -> tuple[list[CompletionChoice], UsageBlock, SearchBlock]:
        request = self._request
        reader = solution.reader if self._writer.chat else SolutionReader()  # /completions return text as it is
        choices = select_choices(
            solution,
            request.n,
            request.stop,
            reader,
            read_reply=None if request.reply_format is None else request.reply_format.read_reply,
            decode=request.solver.prompt.decode if request.with_logprobs else None,
        )
        usage = usage_block(solution, choices)
        search = search_block(solution, request.preset, self._tree_address, self._lossy)
        cost = None if self._prices is None else self._prices.cost_of(solution.usage)
        if cost is not None:
            search["usage"]["cost"] = cost
        self._metrics.count_tokens(request.preset, usage["completion_tokens"], solution.usage.prompt_tokens, cost)
        log.info("search done", extra=dict(search))
        try:
            await asyncio.to_thread(self._trees.add_tree, self._tree_id, solution, request.solver.strategy)
        except OSError:
            log.exception("the tree of %s is not on disk", self._tree_id)
        if request.reply_format is not None and not choices and solution.result.candidates:
            raise invalid_reply_error(request.reply_format.param, len(solution.result.candidates), search["tree"])
        if not choices:
            raise timeout_error("before the first solution was begun")
        return choices, usage, search


def invalid_reply_error(param: str, candidates: int, tree: str) -> ApiError:
    """Returns the error of a request whose candidates do not match its field `param`."""
    wrong = "calls the tools as they are described" if param == "tools" else "is JSON that matches it"
    return ApiError(
        422,
        f"{param}: none of the {candidates} candidates of the last search {wrong}, and the request's budget or "
        f"serve.attempts is used up; {tree} shows them",
        param=param,
        code="no_valid_reply",
        headers={"x-should-retry": "false"},
    )


def error_for_client(error: Exception) -> ApiError:
    """Returns what a client is sent for a failed search; errors that the request did not cause are logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestRejected):
        message = f"the server of the model refuses the request: {shorten(str(error))}"
        return ApiError(400, message, code="rejected_by_engine")
    if isinstance(error, OversizedRequest):
        return ApiError(400, str(error), param="max_tokens", code="context_length_exceeded")
    log.error("a search failed", exc_info=error)
    return internal_error(error)

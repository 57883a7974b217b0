"""The parts of one server, and the path of a request through them."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

from fastapi import Request, Response

from decoding.stats import EngineStats
from reason.serve.admission import AdmissionQueue
from reason.serve.errors import ApiError, stopping_error
from reason.serve.events import SearchEvents, search_events, valid_search_events
from reason.serve.metrics import ServerMetrics
from reason.serve.presets import Preset, PresetCatalog
from reason.serve.replays import ReplayStore
from reason.serve.request import SearchRequest, limit_seconds
from reason.serve.responder import ReplyWriter, SearchResponder
from reason.serve.responses import EventStreamResponse, encode_json, while_connected
from reason.serve.settings import ServeSettings
from reason.serve.trees import TreeStore
from reason.solver import Solver
from search.strategy import Budget

WARM_UP_TOKENS = 256

HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.IGNORECASE)

WriterFactory = Callable[[str, int], ReplyWriter]


class HeldReply(NamedTuple):
    """The body of a complete reply, and the address of its tree."""

    tree: str
    body: bytes


class SearchService:
    """Holds the parts of a server; `load` loads the models, `close` frees them.

    solver   None until the models are loaded
    created  seconds since the epoch
    """

    def __init__(self, settings: ServeSettings, catalog: PresetCatalog) -> None:
        self.settings, self.catalog = settings, catalog
        self.solver: Solver | None = None
        self.created = int(time.time())
        self.admission = AdmissionQueue(settings.branches, settings.concurrency, settings.queue)
        self.trees = TreeStore(settings.keep, settings.folder)
        self.replays = ReplayStore[HeldReply](settings.replays)
        self.metrics = ServerMetrics(
            lambda: self.admission.running,
            lambda: self.admission.waiting,
            self._engine_stats,
        )

    def load(self) -> None:
        """Loads the models and runs a short search: the first search on a machine compiles the drafter's loops.

        *Mutates* the service. Raises: ConfigError.
        """
        solver = self.catalog.spec.load_solver()
        try:
            self.catalog = self.catalog.without_unfit(solver)
            solver.with_options(budget=Budget(tokens=WARM_UP_TOKENS)).solve("What is 1+1?")
        except BaseException:
            solver.close()
            raise
        self.solver = solver

    def close(self) -> None:
        """Cancels running searches and frees the models. *Mutates* the service."""
        solver, self.solver = self.solver, None
        if solver is not None:
            solver.close()

    def require_solver(self) -> Solver:
        """Returns the solver. Raises: ApiError 503 while the models are being loaded, and after `close`."""
        if self.solver is None:
            raise ApiError(503, "the models are being loaded", code="loading", headers={"Retry-After": "2"})
        return self.solver

    def find_effort(self, name: str) -> Preset:
        """Returns the search of a `reasoning_effort`. Raises: ApiError 400 naming those that this server has."""
        preset = self.catalog.efforts.get(name)
        if preset is None:
            choices = ", ".join(self.catalog.efforts) or "none"
            message = f"this server's models can run no search of reasoning_effort={name}; it has: {choices}"
            raise ApiError(400, message, param="reasoning_effort", code="invalid_value")
        return preset

    def find_preset(self, name: str) -> Preset:
        """Returns the preset called `name`. Raises: ApiError 404 naming the presets that exist."""
        preset = self.catalog.presets.get(name)
        if preset is None:
            choices = ", ".join(self.catalog.presets)
            message = f"there is no model {name!r}; choose one of: {choices}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return preset

    async def answer_request(
        self, request: Request, search: SearchRequest, make_writer: WriterFactory, *, name: str | None = None
    ) -> Response:
        """Waits for a search slot, searches, and answers; a stream begins when the search does.

        `make_writer` makes what writes the reply from its id and the time. A request with the `name` of one before it
        gets the reply of that, unless it is a stream.

        Raises: ApiError; ClientGone once everything that the search held has been freed.
        """
        deadline = None if search.timeout is None else asyncio.get_running_loop().time() + search.timeout
        tree_id = uuid.uuid4().hex
        writer = make_writer(tree_id, int(time.time()))
        address = f"{self.find_address(request)}/trees/{tree_id}"
        responder = SearchResponder(
            search,
            tree_id,
            address,
            writer,
            self.trees,
            self.metrics,
            self.catalog.lossy_settings,
            self.settings.prices,
        )
        if not search.stream:

            async def search_once() -> HeldReply:
                async with AsyncExitStack() as resources:
                    events = await self._start_search(resources, search, deadline)
                    return HeldReply(address, encode_json(await responder.complete_response(events)))

            work = search_once() if name is None else self.replays.reply_once(name, search_once)
            reply = await while_connected(request, work)
            return Response(reply.body, 200, {"x-reason-tree": reply.tree}, media_type="application/json")
        async with AsyncExitStack() as resources:
            events = await while_connected(request, self._start_search(resources, search, deadline))
            # the slot is released when the stream ends, not when this function returns
            return EventStreamResponse(
                responder.stream_response(request, events),
                resources.pop_all(),
                {"x-reason-tree": address},
                stopping_event=lambda: writer.error_chunk(stopping_error().json_body),
            )

    async def _start_search(
        self, resources: AsyncExitStack, search: SearchRequest, deadline: float | None
    ) -> SearchEvents:
        """Returns the events of the search once it has a slot; `resources` hold both."""
        await resources.enter_async_context(self.admission.hold_slot(search.width, deadline))
        # a search that starts at its deadline still gets a moment, so that it ends with a result and not an error
        left = None if deadline is None else max(1e-3, deadline - asyncio.get_running_loop().time())
        solver = search.solver.with_options(budget=limit_seconds(search.solver.budget, left))
        if search.reply_format is None:
            events = search_events(solver, search.problem, is_live=search.is_live)
        else:
            events = valid_search_events(solver, search.problem, self.settings.attempts)
        return await resources.enter_async_context(aclosing(events))

    def find_address(self, request: Request) -> str:
        """Returns the address at which the client reaches this server; "" where that is not known."""
        host = request.headers.get("host", "")
        named_address = f"{request.url.scheme}://{host}" if HOST.fullmatch(host) else ""
        return self.settings.public_url or named_address

    def _engine_stats(self) -> EngineStats | None:
        return None if self.solver is None else self.solver.engine.stats

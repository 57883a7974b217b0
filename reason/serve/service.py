"""The parts of one server, and the path of a request through them."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import AsyncExitStack, aclosing

from fastapi import Request, Response

from decoding.stats import EngineStats
from reason.serve.admission import AdmissionQueue
from reason.serve.errors import ApiError, stopping_error
from reason.serve.events import search_events
from reason.serve.metrics import ServerMetrics
from reason.serve.presets import Preset, PresetCatalog
from reason.serve.request import SearchRequest, limit_seconds
from reason.serve.responder import SearchResponder
from reason.serve.responses import EventStreamResponse, json_response, while_connected
from reason.serve.settings import ServeSettings
from reason.serve.trees import TreeStore
from reason.serve.wire import ResponseWriter, error_chunk
from reason.solver import Solver
from search.strategy import Budget

WARM_UP_TOKENS = 256


class SearchService:
    """Holds the parts of a server; `load` loads the models, `close` frees them.

    solver   None until the models are loaded
    created  seconds since the epoch
    """

    def __init__(self, settings: ServeSettings, catalog: PresetCatalog) -> None:
        self.settings, self.catalog = settings, catalog
        self.solver: Solver | None = None
        self.created = int(time.time())
        self.admission = AdmissionQueue(settings.concurrency, settings.queue)
        self.trees = TreeStore(settings.keep, settings.folder)
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

    def find_preset(self, name: str) -> Preset:
        """Returns the preset called `name`. Raises: ApiError 404 naming the presets that exist."""
        preset = self.catalog.presets.get(name)
        if preset is None:
            choices = ", ".join(self.catalog.presets)
            message = f"there is no model {name!r}; choose one of: {choices}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return preset

    async def answer_request(self, request: Request, search: SearchRequest, *, chat: bool) -> Response:
        """Waits for a search slot, searches, and answers; a stream begins when the search does.

        Raises: ApiError; ClientGone once everything that the search held has been freed.
        """
        deadline = None if search.timeout is None else asyncio.get_running_loop().time() + search.timeout
        tree_id = uuid.uuid4().hex
        headers = {"x-reason-tree": f"/trees/{tree_id}"}
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{tree_id}",
            "created": int(time.time()),
            "model": search.preset,
            "system_fingerprint": f"fp_{self.catalog.spec.config_hash}",
        }
        async with AsyncExitStack() as resources:
            await while_connected(request, resources.enter_async_context(self.admission.hold_slot(deadline)))
            # a search that starts at its deadline still gets a moment, so that it ends with a result and not an error
            left = None if deadline is None else max(1e-3, deadline - asyncio.get_running_loop().time())
            solver = search.solver.with_options(budget=limit_seconds(search.solver.budget, left))
            events = await resources.enter_async_context(aclosing(search_events(solver, search.problem)))
            writer, lossy = ResponseWriter(chat, head), self.catalog.lossy_settings
            responder = SearchResponder(search, tree_id, writer, self.trees, self.metrics, lossy)
            if search.stream:
                # the slot is released when the stream ends, not when this function returns
                return EventStreamResponse(
                    responder.stream_response(request, events),
                    resources.pop_all(),
                    headers,
                    stopping_event=error_chunk(stopping_error().json_body),
                )
            body = await while_connected(request, responder.complete_response(events))
            return json_response(body, 200, headers)

    def _engine_stats(self) -> EngineStats | None:
        return None if self.solver is None else self.solver.engine.stats

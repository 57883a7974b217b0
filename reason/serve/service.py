"""One server's parts, and the way of a request through them."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import AsyncExitStack, aclosing

from fastapi import Request, Response

from reason.serve.admission import Admission
from reason.serve.connection import EventStream, while_connected
from reason.serve.errors import ApiError
from reason.serve.events import watched
from reason.serve.metrics import Metrics
from reason.serve.presets import Offer, Preset
from reason.serve.request import Asked, budget_until
from reason.serve.responder import Outcome
from reason.serve.responses import reply
from reason.serve.settings import ServeSettings
from reason.serve.trees import Trees
from reason.serve.wire import Wire
from reason.solver import Solver
from search.strategy import Budget

WARM_UP_TOKENS = 256


class Service:
    """Made from checked settings; `load` brings in the models, `close` lets go of them.

    solver   None until the models are loaded
    created  seconds since the epoch
    """

    def __init__(self, settings: ServeSettings, offer: Offer) -> None:
        self.settings, self.offer = settings, offer
        self.solver: Solver | None = None
        self.created = int(time.time())
        self.admission = Admission(settings.concurrency, settings.queue)
        self.trees = Trees(settings.keep, settings.folder)
        self.metrics = Metrics(
            lambda: self.admission.running,
            lambda: self.admission.waiting,
            lambda: None if self.solver is None else getattr(self.solver.engine, "stats", None),
        )

    def load(self) -> None:
        """Load the models and let them work once: the first search on a machine compiles the drafter's loops, which no
        client should have to wait for. *Mutates* the service. Raises: ConfigError."""
        solver = self.offer.plan.open()
        try:
            solver.but(budget=Budget(tokens=WARM_UP_TOKENS)).solve("What is 1+1?")
        except BaseException:
            solver.close()
            raise
        self.solver = solver

    def close(self) -> None:
        """Cancel what is under way and let go of the models. *Mutates* the service."""
        solver, self.solver = self.solver, None
        if solver is not None:
            solver.close()

    def ready(self) -> Solver:
        """The solver. Raises: ApiError 503 while it is being loaded, or is gone."""
        if self.solver is None:
            raise ApiError(503, "the models are being loaded", code="loading", headers={"Retry-After": "2"})
        return self.solver

    def preset(self, name: str) -> Preset:
        """The preset of that name. Raises: ApiError 404 naming those there are."""
        preset = self.offer.presets.get(name)
        if preset is None:
            choices = ", ".join(self.offer.presets)
            message = f"there is no model {name!r}; choose one of: {choices}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return preset

    async def answer(self, request: Request, asked: Asked, *, chat: bool) -> Response:
        """Wait for a turn, search, answer; a stream begins when the search does.

        Raises: ApiError; ClientGone once what the search held is given back.
        """
        deadline = None if asked.timeout is None else asyncio.get_running_loop().time() + asked.timeout
        identity = uuid.uuid4().hex
        headers = {"x-reason-tree": f"/trees/{identity}"}
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{identity}",
            "created": int(time.time()),
            "model": asked.preset,
            "system_fingerprint": f"fp_{self.offer.plan.digest}",
        }
        async with AsyncExitStack() as held:
            await while_connected(request, held.enter_async_context(self.admission.turn(deadline)))
            left = None if deadline is None else max(1e-3, deadline - asyncio.get_running_loop().time())
            solver = asked.solver.but(budget=budget_until(asked.solver.budget, left))
            events = await held.enter_async_context(aclosing(watched(solver, asked.problem)))
            outcome = Outcome(asked, identity, Wire(chat, head), self.trees, self.metrics)
            if asked.stream:
                return EventStream(outcome.stream(request, events), held.pop_all(), headers)
            return reply(await while_connected(request, outcome.whole(events)), 200, headers)

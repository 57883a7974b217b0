"""One server's parts, and the way of a request through them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from fastapi import Request, Response

from decoding.core import OversizedRequest
from reason.problem import Solution
from reason.serve import wire
from reason.serve.admission import Admission, out_of_time
from reason.serve.choices import Choice, choices_of, search_block, usage_of
from reason.serve.connection import EventStream, while_connected
from reason.serve.errors import ApiError, failure
from reason.serve.metrics import Metrics
from reason.serve.presets import Offer, Preset
from reason.serve.reply import reply
from reason.serve.request import Asked, budget_until
from reason.serve.settings import ServeSettings
from reason.serve.trees import Trees
from reason.serve.watch import Events, watched
from reason.serve.wire import Wire
from reason.solver import Solver
from search.base import Budget, Written

WARM_UP_TOKENS = 256

log = logging.getLogger(__name__)


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

        Raises: ApiError; ClientGone after giving back what the search held.
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
            events = await held.enter_async_context(aclosing(self._search(asked, deadline)))
            outcome = Outcome(self, asked, identity, Wire(chat, head))
            if asked.stream:
                return EventStream(outcome.stream(request, events), held.pop_all(), headers)
            return reply(await while_connected(request, outcome.whole(events)), 200, headers)

    async def _search(self, asked: Asked, deadline: float | None) -> Events:
        left = None if deadline is None else max(1e-3, deadline - asyncio.get_running_loop().time())
        solver = asked.solver.but(budget=budget_until(asked.solver.budget, left))
        async with aclosing(watched(solver, asked.problem)) as events:
            try:
                async for event in events:
                    yield event
            except OversizedRequest as error:
                raise ApiError(400, str(error), param="max_tokens", code="context_length_exceeded") from error


class Outcome:
    """What becomes of one search: its answer whole or as a stream, its tree, its place in the counts."""

    def __init__(self, service: Service, asked: Asked, identity: str, form: Wire) -> None:
        self._service, self._asked, self._identity, self._form = service, asked, identity, form

    async def whole(self, events: Events) -> dict[str, Any]:
        """The answer in one piece. Raises: ApiError 504 if there is none when the time is up."""
        async for event in events:
            if isinstance(event, Solution):
                choices, usage, search = await self._settle(event)
                return self._form.whole(choices, usage, search)
        raise AssertionError("a search ends with a solution")

    async def stream(self, request: Request, events: Events) -> AsyncIterator[bytes]:
        """The answer in chunks; an error in the midst is the last of them."""
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
        except ApiError as error:
            request.state.status = error.status
            yield wire.failed(error.body)
        except Exception as error:
            log.exception("a search failed")
            request.state.status = 500
            yield wire.failed(failure(error).body)

    async def _settle(self, solution: Solution) -> tuple[list[Choice], dict[str, Any], dict[str, Any]]:
        """What is returned of a search that has come to its end: choices, usage, and our own block."""
        asked, service = self._asked, self._service
        choices = choices_of(solution, asked.n, asked.stop)
        usage = usage_of(solution, choices)
        service.metrics.searched(asked.preset, usage["completion_tokens"])
        try:
            await asyncio.to_thread(service.trees.put, self._identity, solution, asked.solver.strategy)
        except OSError:
            log.exception("the tree of %s is not on disk", self._identity)
        if not choices:
            raise out_of_time("before any solution was begun")
        return choices, usage, search_block(solution, asked.preset, f"/trees/{self._identity}")

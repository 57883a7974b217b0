"""The addresses of the server and what each answers."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from reason.serve import question
from reason.serve.connection import ClientGone
from reason.serve.errors import ApiError, install
from reason.serve.middleware import GONE, Gate
from reason.serve.request import Asked, asked
from reason.serve.responses import reply
from reason.serve.schemas import Body, ChatBody, TextBody
from reason.serve.service import Service


def make_app(service: Service) -> Gate:
    """The application, as ASGI servers take it."""
    app = FastAPI(title="reason", docs_url=None, redoc_url=None)
    install(app)
    _completions(app, service)
    _models(app, service)
    _trees(app, service)
    _state(app, service)
    settings = service.settings
    return Gate(
        app,
        api_key=settings.api_key,
        body_bytes=settings.body_kib << 10,
        counted=service.metrics.answered,
    )


def _completions(app: FastAPI, service: Service) -> None:
    async def checked(request: Request, body: Body) -> Asked:
        preset, solver = service.preset(body.model), service.ready()
        request.state.preset = preset.name
        # a long text takes a while to encode, and the loop has others to serve
        if isinstance(body, ChatBody):
            problem = await asyncio.to_thread(question.from_messages, body.messages, solver.prompt)
        else:
            assert isinstance(body, TextBody)
            problem = await asyncio.to_thread(question.from_text, body.prompt, solver.prompt)
        return asked(body, problem, solver, preset, service.settings)

    @app.post("/v1/chat/completions")
    async def chat(request: Request, body: ChatBody) -> Response:
        """Search for an answer to the conversation's last message."""
        return await service.answer(request, await checked(request, body), chat=True)

    @app.post("/v1/completions")
    async def text(request: Request, body: TextBody) -> Response:
        """Search for a continuation of the prompt as it is."""
        return await service.answer(request, await checked(request, body), chat=False)

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=GONE)


def _models(app: FastAPI, service: Service) -> None:
    def entry(name: str) -> dict[str, Any]:
        preset = service.preset(name)
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "reason",
            "search": preset.search,
            "writer": service.offer.plan.names["model"],
        }

    @app.get("/v1/models")
    async def models() -> Response:
        """The presets."""
        return reply({"object": "list", "data": [entry(name) for name in service.offer.presets]})

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Response:
        """One preset."""
        return reply(entry(name))


def _trees(app: FastAPI, service: Service) -> None:
    def missing() -> ApiError:
        kept = f"this server keeps the last {service.settings.keep}"
        return ApiError(404, f"there is no such tree, or no longer: {kept}", code="tree_not_found")

    @app.get("/trees/{identity}.json")
    async def tree(identity: str) -> Response:
        """A search as plain data."""
        record = await asyncio.to_thread(service.trees.get, identity)
        if record is None:
            raise missing()
        return reply(record)

    @app.get("/trees/{identity}")
    async def page(identity: str) -> Response:
        """A search as a page to look at."""
        html = await asyncio.to_thread(service.trees.page, identity)
        if html is None:
            raise missing()
        return HTMLResponse(html)


def _state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """200 once requests can be answered, 503 before."""
        service.ready()
        return reply({"status": "ok", "running": service.admission.running, "waiting": service.admission.waiting})

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/check")
    async def check() -> Response:
        """200 if the idle engine holds nothing that finished searches left behind: no branch, no page."""
        solver = service.ready()
        if service.admission.running or service.admission.waiting:
            raise ApiError(409, "searches are under way; the engine is checked when it is idle", code="busy")
        try:
            await asyncio.to_thread(solver.check)
        except AssertionError as error:
            raise ApiError(500, f"the engine holds what it should not: {error}", code="unsound") from error
        return reply({"status": "sound"})

"""The routes of the server."""

from __future__ import annotations

import asyncio
import hashlib

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

import reason
from reason.serve import question, request_id
from reason.serve.errors import ApiError, install_error_handlers
from reason.serve.gate import RequestGate
from reason.serve.item_writer import ItemWriter
from reason.serve.items import ResponsesRequest, name_as_here, to_chat
from reason.serve.middleware import CLIENT_CLOSED_REQUEST, RequestMiddleware
from reason.serve.preset_entries import ModelEntry, describe_preset
from reason.serve.presets import Preset
from reason.serve.reply_format import read_format
from reason.serve.request import SearchRequest, validate_request
from reason.serve.responses import ClientGone, json_response
from reason.serve.schemas import ChatCompletionRequest, CompletionRequest, TextCompletionRequest
from reason.serve.service import SearchService, WriterFactory
from reason.serve.welcome import trees_page, welcome_page
from reason.serve.wire import ResponseWriter


def make_application(service: SearchService) -> RequestMiddleware:
    """Returns the ASGI application: the routes behind the middleware.

    CORS is outside the gate: browsers ask for permission without a key, and read refusals too.
    """
    app = FastAPI(title="reason", version=reason.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    install_error_handlers(app)
    _add_completions(app, service)
    _add_models(app, service)
    _add_trees(app, service)
    _add_state(app, service)
    settings = service.settings
    guarded: ASGIApp = RequestGate(app, api_key=settings.api_key, body_bytes=settings.body_kib << 10)
    if settings.cors_origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "HEAD", "OPTIONS", "POST"),
            allow_headers=("*",),  # OpenAI's client for browsers sends a dozen of its own
            expose_headers=("Retry-After", "X-Reason-Tree", "X-Request-Id", "X-Should-Retry"),
        )
    return RequestMiddleware(guarded, count_request=service.metrics.count_request)


def _add_completions(app: FastAPI, service: SearchService) -> None:
    async def validated(request: Request, body: CompletionRequest) -> SearchRequest:
        preset, solver = service.find_preset(body.model), service.require_solver()
        if body.reasoning_effort is not None:
            preset = service.find_effort(body.reasoning_effort)
        solver = preset.adapt_solver(solver)
        reply_format = None
        request.state.preset = preset.name
        # in a thread: a long text takes a while to encode, and the event loop serves other requests meanwhile
        if isinstance(body, ChatCompletionRequest):
            reply_format = await asyncio.to_thread(read_format, body, solver.prompt)
            problem = await asyncio.to_thread(
                question.problem_from_messages, body.messages, solver.prompt, reply_format
            )
        else:
            assert isinstance(body, TextCompletionRequest)
            problem = await asyncio.to_thread(question.problem_from_text, body.prompt, solver.prompt)
        engine = service.catalog.spec.engine.settings
        return validate_request(
            body, problem, solver, preset, service.settings, engine=engine, reply_format=reply_format
        )

    def writer_of(prefix: str, search: SearchRequest) -> WriterFactory:
        def make_writer(reply_id: str, created: int) -> ResponseWriter:
            head = {
                "id": f"{prefix}-{reply_id}",
                "created": created,
                "model": search.preset,
                "system_fingerprint": f"fp_{service.catalog.spec.config_hash}",
            }
            return ResponseWriter(prefix == "chatcmpl", head, search.with_usage)

        return make_writer

    def name_of(request: Request, body: CompletionRequest) -> str | None:
        """Returns a name that only the same request has, sent again with the same id; None without an id."""
        headers = request.headers
        given = headers.get("idempotency-key") or headers.get(request_id.HEADER)
        if given is None or service.settings.replays == 0:
            return None
        content = f"{request.url.path}\n{given}\n{body.model_dump_json()}"
        return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()

    @app.post("/v1/chat/completions")
    async def complete_chat(request: Request, body: ChatCompletionRequest) -> Response:
        """Searches for an answer to the last message of the conversation."""
        search = await validated(request, body)
        return await service.answer_request(request, search, writer_of("chatcmpl", search), name=name_of(request, body))

    @app.post("/v1/completions")
    async def complete_text(request: Request, body: TextCompletionRequest) -> Response:
        """Searches for a continuation of the prompt as it is."""
        search = await validated(request, body)
        return await service.answer_request(request, search, writer_of("cmpl", search), name=name_of(request, body))

    @app.post("/v1/responses")
    async def respond(request: Request, body: ResponsesRequest) -> Response:
        """Searches for an answer to the last item of the conversation."""
        try:
            search = await validated(request, to_chat(body))
        except ApiError as error:
            raise name_as_here(error) from error

        def make_writer(reply_id: str, created: int) -> ItemWriter:
            return ItemWriter(body, reply_id, created, search.preset)

        return await service.answer_request(request, search, make_writer, name=name_of(request, body))

    @app.exception_handler(ClientGone)
    async def handle_disconnect(request: Request, error: ClientGone) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


def _add_models(app: FastAPI, service: SearchService) -> None:
    def model_entry(preset: Preset) -> ModelEntry:
        return describe_preset(preset, created=service.created)

    @app.get("/v1/models")
    async def list_models() -> Response:
        """Lists the presets, and under `reasoning_efforts` what each effort takes in their place."""
        catalog = service.catalog
        efforts = {name: model_entry(preset) for name, preset in catalog.efforts.items()}
        entries = list(map(model_entry, catalog.presets.values()))
        return json_response({"object": "list", "data": entries, "reasoning_efforts": efforts})

    @app.get("/v1/models/{name}")
    async def show_model(name: str) -> Response:
        """Describes one preset."""
        return json_response(model_entry(service.find_preset(name)))


def _add_trees(app: FastAPI, service: SearchService) -> None:
    def missing_tree() -> ApiError:
        message = f"there is no such tree, or no longer: this server keeps the last {service.settings.keep}"
        return ApiError(404, message, code="tree_not_found")

    @app.get("/")
    async def welcome(request: Request) -> Response:
        """Returns a page with the presets, a request to try, and the other addresses."""
        with_key = service.settings.api_key is not None
        return HTMLResponse(welcome_page(service.catalog, service.find_address(request), with_key=with_key))

    @app.get("/trees")
    async def list_trees(request: Request) -> Response:
        """Returns a page with the searches that are still in memory."""
        trees = service.trees.list_summaries()
        return HTMLResponse(trees_page(trees, service.find_address(request), service.settings.keep))

    @app.get("/trees.json")
    async def list_trees_as_data() -> Response:
        """Lists the searches that are still in memory."""
        return json_response(service.trees.list_summaries())

    @app.get("/trees/{tree_id}.json")
    async def tree_data(tree_id: str) -> Response:
        """Returns the tree of a search as plain data."""
        record = await asyncio.to_thread(service.trees.load_record, tree_id)
        if record is None:
            raise missing_tree()
        return json_response(record)

    @app.get("/trees/{tree_id}")
    async def show_tree(tree_id: str) -> Response:
        """Returns the tree of a search as an HTML page."""
        html = await asyncio.to_thread(service.trees.render_page, tree_id)
        if html is None:
            raise missing_tree()
        return HTMLResponse(html)


def _add_state(app: FastAPI, service: SearchService) -> None:
    @app.get("/health")
    async def report_health() -> Response:
        """Returns 200 once requests can be answered, 503 before; `lossy` as in the `search` part of an answer."""
        service.require_solver()
        admission = service.admission
        lossy = service.catalog.lossy_settings
        return json_response(
            {"status": "ok", "running": admission.running, "waiting": admission.waiting, "lossy": lossy}
        )

    @app.get("/metrics")
    async def report_metrics() -> Response:
        """Returns the metrics in the Prometheus text format."""
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(service.metrics.format_metrics(), media_type=content_type)

    @app.get("/check")
    async def check_engine() -> Response:
        """Returns 200 if the idle engine holds nothing of finished searches: no branch, no KV slot."""
        solver = service.require_solver()
        if service.admission.running or service.admission.waiting:
            raise ApiError(409, "searches are running; the engine is checked when it is idle", code="busy")
        try:
            await asyncio.to_thread(solver.assert_invariants)
        except AssertionError as error:
            raise ApiError(500, f"the idle engine still holds: {error}", code="unsound") from error
        return json_response({"status": "sound"})

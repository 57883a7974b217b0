"""Errors as OpenAI's API reports them, for our own errors and for those of the framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from reason.serve.request_id import current_request_id
from reason.serve.responses import json_response

ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 504: "timeout_error"}
"""Error types by status; other statuses below 500 are `invalid_request_error`, the rest `server_error`."""


class ApiError(Exception):
    """A request that cannot be answered: status, one sentence, and the field and a code for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def json_body(self) -> dict[str, dict[str, str | None]]:
        """The error as OpenAI's clients read it: `{"error": {...}}`."""
        kind = ERROR_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> Response:
        """The error as an HTTP response."""
        return json_response(self.json_body, self.status, self.headers)


def internal_error(error: Exception) -> ApiError:
    """Returns the error for a failure that the request did not cause; details are in the log only."""
    where = f"see its log, request_id {current_request_id.get()}"
    return ApiError(500, f"the server failed ({type(error).__name__}); {where}", code="internal_error")


def stopping_error() -> ApiError:
    """Returns the error of a request that was under way when the server stopped."""
    return ApiError(503, "the server stops; its time for running requests (serve.grace) is over", code="stopping")


def install_error_handlers(app: FastAPI) -> None:
    """Installs handlers that give all errors OpenAI's format. *Mutates* the app."""

    @app.exception_handler(ApiError)
    async def handle_api_error(request: Request, error: ApiError) -> Response:
        return error.response

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = _allowed_methods(headers["Allow"])
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
        message = f"{request.method} {request.scope['path']}: {error.detail}"
        return ApiError(error.status_code, message, headers=headers).response

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_body(request: Request, error: RequestValidationError) -> Response:
        return validation_error(error.errors()[0]).response

    @app.exception_handler(Exception)  # starlette raises it again afterwards, for the log, and closes the connection
    async def handle_other_error(request: Request, error: Exception) -> Response:
        return internal_error(error).response


def _allowed_methods(of_route: str) -> str:
    """Returns the methods of a path: those of its route, HEAD where there is GET, and OPTIONS."""
    methods = {"OPTIONS", *of_route.split(", ")}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def validation_error(error: Mapping[str, Any]) -> ApiError:
    """Converts one error of pydantic's validation of a body."""
    kind, context = error["type"], error.get("ctx") or {}
    param = ".".join(str(part) for part in error["loc"] if part != "body")
    if kind == "unsupported":
        return ApiError(400, error["msg"], param=context.get("field") or param, code="unsupported_field")
    if kind == "invalid_text":
        return ApiError(400, error["msg"], param=context["field"], code="invalid_value")
    if kind == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {context.get('error')}", code="invalid_json")
    if not param:
        return ApiError(400, "the body must be a JSON object, sent as application/json")
    if kind == "extra_forbidden":
        return ApiError(400, f"there is no field {param}", param=param, code="unknown_field")
    if kind == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_field")
    return ApiError(400, f"{param}: {error['msg']}", param=param, code="invalid_value")

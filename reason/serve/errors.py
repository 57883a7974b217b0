"""Every error in OpenAI's shape, whoever raised it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from reason.serve.responses import reply

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 504: "timeout_error"}
"""Names of errors by status; of the others, those below 500 are the client's, the rest the server's."""


class ApiError(Exception):
    """A request that cannot be answered: status, one sentence, and for programs the field and a code."""

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
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> Response:
        """The error as the answer to its request."""
        return reply(self.body, self.status, self.headers)


def failure(error: Exception) -> ApiError:
    """What a client is told of an error that is not its own; the log has the rest."""
    return ApiError(500, f"the server failed ({type(error).__name__}); its log says why", code="internal_error")


def install(app: FastAPI) -> None:
    """Give the app's errors, and the framework's, their shape. *Mutates* the app."""

    @app.exception_handler(ApiError)
    async def ours(request: Request, error: ApiError) -> Response:
        return error.response

    @app.exception_handler(HTTPException)
    async def theirs(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}: "
        return ApiError(error.status_code, f"{where}{error.detail}", headers=error.headers).response

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return explained(error.errors()[0]).response

    @app.exception_handler(Exception)  # after this it is raised again, for the log, and the connection is closed
    async def unforeseen(request: Request, error: Exception) -> Response:
        return failure(error).response


def explained(error: Mapping[str, Any]) -> ApiError:
    """The first thing that is wrong with a body, as pydantic tells it."""
    kind, about = error["type"], error.get("ctx") or {}
    where = [str(part) for part in error["loc"] if part != "body"]
    if kind == "unsupported":
        return ApiError(400, error["msg"], param=about.get("field") or ".".join(where), code="unsupported_field")
    if kind == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {about.get('error')}", code="invalid_json")
    if not where:
        return ApiError(400, "the body must be a JSON object, sent as application/json")
    param = ".".join(where)
    if kind == "extra_forbidden":
        return ApiError(400, f"there is no field {param}", param=param, code="unknown_field")
    if kind == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_field")
    return ApiError(400, f"{param}: {error['msg']}", param=param, code="invalid_value")

"""The HTTP endpoints of one SGLang server, or of a router in front of several."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2

from reason.engines.http.client import JsonHttpClient
from reason.engines.http.errors import Overloaded, ReplyBrokenOff, RequestRejected, parse_retry_after
from reason.engines.sglang_client.streaming import GenerateStream
from reason.engines.sglang_client.wire import GenerateResponse

_QUEUE_FULL = "queue is full"
_QUERY_TIMEOUT_S = 5.0  # enough for replies that cost a server no forward pass


class SGLangServer(JsonHttpClient):
    """Calls the native endpoints of SGLang; `url` has no path.

    /generate takes ids and returns ids with log-probabilities; /model_info, /server_info and /v1/detokenize describe
    the server; /abort_request ends a request by its id.
    """

    async def generate(self, body: Mapping[str, object], *, timeout_s: float | None = None) -> object:
        """Returns the JSON of POST /generate. Raises: a TransientError, RequestRejected or OversizedRequest."""
        return await self.request_json("POST", "/generate", body, timeout_s=timeout_s)

    async def stream_generate(
        self, body: Mapping[str, object], stream: GenerateStream, *, timeout_s: float
    ) -> GenerateResponse:
        """Adds what POST /generate streams to `stream` and returns the whole reply. Raises: as `generate`."""

        def add_event(event: object) -> bool:
            self._require_no_error(event)
            return stream.add_event(event)

        try:
            await self.read_events(
                "/generate", body, add_event, count_tokens=lambda: stream.num_tokens, timeout_s=timeout_s
            )
        except ReplyBrokenOff:
            if not stream.is_finished:
                raise
        return stream.build_response()

    async def query(self, method: str, path: str, body: Mapping[str, object] | None = None) -> object:
        """Returns the JSON of an endpoint that takes no forward pass. Raises: as `generate`."""
        return await self.request_json(method, path, body, timeout_s=_QUERY_TIMEOUT_S)

    async def abort_request(self, request_id: str) -> None:
        """Stops a request at the server. Raises: a TransientError or RequestRejected (a router knows no aborts)."""
        body = {"rid": request_id}
        reply = await self._http.fetch("POST", self.url, "/abort_request", body, total_s=_QUERY_TIMEOUT_S)
        if reply.status != httpx2.codes.OK:
            raise RequestRejected(f"{self.url} did not take the abort: HTTP {reply.status}")

    def _require_no_error(self, event: object) -> None:
        """Raises the error that an event of a stream, which began with a status of success, reports."""
        error = event.get("error") if isinstance(event, dict) else None
        if error is None:
            return
        code = error.get("code") if isinstance(error, dict) else None
        text = self._http.mask.describe(self.describe_error(event))
        status = code if isinstance(code, int) and code >= httpx2.codes.BAD_REQUEST else httpx2.codes.BAD_GATEWAY
        raise self.classify_status(int(status), "/generate", text, {})

    def classify_status(self, status: int, path: str, text: str, headers: Mapping[str, str]) -> Exception:
        """Returns the error for a status; SGLang reports a full queue as 503, not 429."""
        if _QUEUE_FULL in text:
            return Overloaded(f"{self.url}{path} says {status}: {text}", parse_retry_after(headers))
        return super().classify_status(status, path, text, headers)

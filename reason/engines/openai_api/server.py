"""The HTTP endpoints of one OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import httpx2

from reason.engines.http.client import JsonHttpClient
from reason.engines.http.errors import (
    Overloaded,
    ReplyBrokenOff,
    ReplyTimeout,
    RequestRejected,
    ResponseLost,
    find_error_message,
    parse_retry_after,
)
from reason.engines.openai_api.response import CompletionResponse
from reason.engines.openai_api.streaming import CompletionStream

_VENDOR_OVERLOADED = 529  # no standard status, but vendors use it
_NO_CREDIT = "insufficient_quota"
_RETRYABLE = (408, 409)


class OpenAIServer(JsonHttpClient):
    """Calls one server; `url` ends with the version (/v1)."""

    async def request_completion(
        self, path: str, body: Mapping[str, object], *, timeout_s: float | None = None
    ) -> object:
        """Returns the JSON of the reply. Raises: as `request_json`, also for an error with a success status."""
        content = await self.request_json("POST", path, body, timeout_s=timeout_s)
        self._require_no_error(path, content)
        return content

    async def stream_completion(
        self, path: str, body: Mapping[str, object], stream: CompletionStream, *, timeout_s: float
    ) -> CompletionResponse:
        """Adds the reply up to the first stop string to `stream` and returns it. Raises: as `request_completion`."""

        def add_event(event: object) -> bool:
            self._require_no_error(path, event)
            return stream.add_event(event)

        try:
            await self.read_events(path, body, add_event, count_tokens=lambda: stream.num_events, timeout_s=timeout_s)
        except (ReplyBrokenOff, ReplyTimeout):
            if not stream.is_finished:
                raise
        return self.hide_key(stream.build_response())

    def hide_key(self, response: CompletionResponse) -> CompletionResponse:
        """Returns the response without the key: each event came without it, the text of several may hold it."""
        return replace(response, text=self._http.mask.hide_in_text(response.text))

    def describe_error(self, content: object) -> str:
        """Returns the message of an error reply, with its code."""
        inner = content.get("error") if isinstance(content, dict) else None
        code = inner.get("code") if isinstance(inner, dict) else None
        return find_error_message(content) + (f" ({code})" if isinstance(code, str) else "")

    def classify_status(self, status: int, path: str, text: str, headers: Mapping[str, str]) -> Exception:
        """Returns the error for a status; vendors have more of them than the standard."""
        message, retry_after_s = f"{self.url}{path} says {status}: {text}", parse_retry_after(headers)
        if _NO_CREDIT in text:  # sent as 429, but no pause helps
            return RequestRejected(message)
        is_busy = status == httpx2.codes.SERVICE_UNAVAILABLE and retry_after_s is not None
        if status == _VENDOR_OVERLOADED or is_busy:
            return Overloaded(message, retry_after_s)
        return ResponseLost(message) if status in _RETRYABLE else super().classify_status(status, path, text, headers)

    def _require_no_error(self, path: str, content: object) -> None:
        """Raises the error that a reply with a status of success reports."""
        if not isinstance(content, dict) or not (content.get("error") or content.get("object") == "error"):
            return
        inner = content["error"] if isinstance(content.get("error"), dict) else content
        code, text = inner.get("code"), self._http.mask.describe(self.describe_error(content))
        if isinstance(code, int) and code >= httpx2.codes.BAD_REQUEST:
            raise self.classify_status(code, path, text, {})
        raise ResponseLost(f"{self.url}{path} says 200 and an error: {text}")

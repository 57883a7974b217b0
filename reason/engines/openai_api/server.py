"""The HTTP endpoints of one OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import httpx2

from reason.engines.http.client import JsonHttpClient
from reason.engines.http.errors import (
    Overloaded,
    RequestRejected,
    ResponseLost,
    find_error_message,
    parse_retry_after,
)
from reason.engines.openai_api.streaming import CompletionStream
from reason.engines.openai_api.wire import CompletionResponse

_VENDOR_OVERLOADED = 529  # no standard status, but vendors use it
_NO_CREDIT = "insufficient_quota"
_RETRYABLE = (408, 409)


class OpenAIServer(JsonHttpClient):
    """Calls one server; `url` ends with the version (/v1). `api_key` is removed from all messages."""

    def __init__(self, url: str, http: httpx2.AsyncClient, api_key: str | None) -> None:
        super().__init__(url, http)
        self._api_key = api_key

    async def request_completion(self, path: str, body: Mapping[str, object]) -> object:
        """Returns the JSON of the reply. Raises: as `request_json`, also for an error with a success status."""
        content = await self.request_json("POST", path, body)
        self._require_no_error(path, content)
        return content

    async def stream_completion(self, path: str, body: Mapping[str, object], stop: Sequence[str]) -> CompletionResponse:
        """Returns the reply up to the first stop string. Raises: as `request_completion`."""
        stream = CompletionStream(stop)
        try:
            # Leaving the block closes the connection, which is how servers notice that they can stop generating.
            async with self._http.stream("POST", self.url + path, json=body) as response:
                if not response.is_success:
                    text = (await response.aread()).decode(errors="replace")
                    message = self.describe_error(_parse_json(text) or text[:200])
                    raise self.classify_status(response.status_code, path, message, response.headers)
                async for line in response.aiter_lines():
                    event = _parse_json(line.removeprefix("data:")) if line.startswith("data:") else None
                    if event is not None:
                        self._require_no_error(path, event)
                        if stream.add_event(event):
                            break
        except httpx2.TransportError as error:
            raise self.classify_transport_error(error) from error
        return stream.build_response()

    def describe_error(self, content: object) -> str:
        """Returns the message of an error reply, with its code."""
        inner = content.get("error") if isinstance(content, dict) else None
        code = inner.get("code") if isinstance(inner, dict) else None
        return find_error_message(content) + (f" ({code})" if isinstance(code, str) else "")

    def classify_status(self, status: int, path: str, text: str, headers: httpx2.Headers) -> Exception:
        """Returns the error for a status; vendors have more of them than the standard."""
        if self._api_key is not None:
            text = text.replace(self._api_key, "***")
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
        code, text = inner.get("code"), self.describe_error(content)
        if isinstance(code, int) and code >= httpx2.codes.BAD_REQUEST:
            raise self.classify_status(code, path, text, httpx2.Headers())
        raise ResponseLost(f"{self.url}{path} says 200 and an error: {text}")


def _parse_json(text: str) -> object:
    """Returns the parsed JSON; None where the text is none, such as the end of a stream."""
    try:
        parsed: object = json.loads(text)
    except ValueError:
        return None
    return parsed

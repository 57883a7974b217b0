"""One OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2

from reason.engines.openai_api.streaming import Stream
from reason.engines.openai_api.wire import Reply
from reason.engines.sglang_client.errors import Busy, Lost, Refused
from reason.engines.sglang_client.http_client import Asker
from reason.engines.sglang_client.retry_after import told_to_wait
from reason.engines.sglang_client.wire import error_text

_OVERLOADED = 529  # no standard status, but vendors use it
_NO_CREDIT = "insufficient_quota"
_ASK_AGAIN = (408, 409)


class Endpoint(Asker):
    """`url` ends with the version (/v1). `key` is what no message may repeat."""

    def __init__(self, url: str, http: httpx2.AsyncClient, key: str | None) -> None:
        super().__init__(url, http)
        self._key = key

    async def complete(self, path: str, body: dict[str, Any], **options: Any) -> Any:
        """The JSON of the reply. Raises: a fault, or OversizedRequest; also where a 200 holds an error."""
        content = await self.ask("POST", path, body, **options)
        self._require_no_error(path, content)
        return content

    async def stream(self, path: str, body: dict[str, Any], stop: Sequence[str]) -> Reply:
        """The reply as far as the first stop string; there the connection is closed, by which servers know that nobody
        reads on. Raises: as `complete`."""
        stream = Stream(stop)
        try:
            async with self._http.stream("POST", self.url + path, json=body) as answer:
                if not answer.is_success:
                    text = (await answer.aread()).decode(errors="replace")
                    raise self.fault(answer.status_code, path, self.wording(_json(text) or text[:200]), answer.headers)
                async for line in answer.aiter_lines():
                    if line.startswith("data:") and (event := _json(line.removeprefix("data:"))) is not None:
                        self._require_no_error(path, event)
                        if stream.add(event):
                            break
        except httpx2.TransportError as error:
            raise self.broken(error) from error
        return stream.reply()

    def wording(self, content: Any) -> str:
        """What the body of an error says, and the name it gives the error."""
        inner = content.get("error") if isinstance(content, dict) else None
        code = inner.get("code") if isinstance(inner, dict) else None
        return error_text(content) + (f" ({code})" if isinstance(code, str) else "")

    def fault(self, status: int, path: str, text: str, headers: httpx2.Headers) -> Exception:
        """As of any address, and what vendors add."""
        if self._key is not None:
            text = text.replace(self._key, "***")
        said, after_s = f"{self.url}{path} says {status}: {text}", told_to_wait(headers)
        if _NO_CREDIT in text:
            return Refused(said)
        if status == _OVERLOADED or (status == httpx2.codes.SERVICE_UNAVAILABLE and after_s is not None):
            return Busy(said, after_s)
        return Lost(said) if status in _ASK_AGAIN else super().fault(status, path, text, headers)

    def _require_no_error(self, path: str, content: Any) -> None:
        """Raises: the fault that a reply with a status of success is about."""
        if not isinstance(content, dict) or not (content.get("error") or content.get("object") == "error"):
            return
        inner = content["error"] if isinstance(content.get("error"), dict) else content
        code, text = inner.get("code"), self.wording(content)
        if isinstance(code, int) and code >= httpx2.codes.BAD_REQUEST:
            raise self.fault(code, path, text, httpx2.Headers())
        raise Lost(f"{self.url}{path} says 200 and an error: {text}")


def _json(text: str) -> Any:
    """What a text says in JSON; None where it is none, as the end of a stream."""
    try:
        return json.loads(text)
    except ValueError:
        return None

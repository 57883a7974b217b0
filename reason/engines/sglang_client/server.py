"""One SGLang server, or a router in front of several."""

from __future__ import annotations

from typing import Any

import httpx2

from reason.engines.sglang_client.errors import Busy, Refused
from reason.engines.sglang_client.http_client import Asker
from reason.engines.sglang_client.retry_after import told_to_wait

_FULL = "queue is full"
_NOTICE_S = 5.0  # enough for what costs a server no forward pass


class Server(Asker):
    """`url` is without a path."""

    async def generate(self, body: dict[str, Any]) -> Any:
        """The JSON of the reply. Raises: a fault, or OversizedRequest."""
        return await self.ask("POST", "/generate", body)

    async def notice(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of something that takes no forward pass. Raises: a fault."""
        return await self.ask(method, path, body, timeout=_NOTICE_S)

    async def abort(self, rid: str) -> None:
        """Tells the server that nobody waits for this request any more. Raises: a fault (a router knows no aborts)."""
        answer = await self.send("POST", "/abort_request", {"rid": rid}, timeout=_NOTICE_S)
        if answer.status_code != httpx2.codes.OK:
            raise Refused(f"{self.url} did not take the abort: HTTP {answer.status_code}")

    def fault(self, status: int, path: str, text: str, headers: httpx2.Headers) -> Exception:
        """As of any address, but a full queue comes with a status of its own."""
        if _FULL in text:
            return Busy(f"{self.url}{path} says {status}: {text}", told_to_wait(headers))
        return super().fault(status, path, text, headers)

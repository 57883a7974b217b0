"""An HTTP server that speaks as much of OpenAI's protocol as the client hears, and fails on request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from email.utils import formatdate
from typing import Any, Literal

from reason.engines.openai_api.wire import first_stop
from tests.support.scripted_http import Request, ScriptedHttp

Act = Literal[
    "ok",
    "full",
    "full_until",
    "full_for_hours",
    "overloaded",
    "no_workers",
    "no_credit",
    "die",
    "cut",
    "hang",
    "html",
    "error_200",
    "error_200_busy",
    "no_choices",
    "no_text",
    "aborted",
    "filtered",
    "openai_400",
    "vllm_400",
    "detail_422",
    "too_long",
    "crash_500",
    "denied",
]
"""What becomes of a completion: an answer; a status; the socket closes; half an answer; none at all; a 200 that is no
answer."""

SAID = "One.\n\nTwo."
ERRORS: dict[str, tuple[int, Any, dict[str, str]]] = {
    "full": (429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, {"Retry-After": "0.4"}),
    "full_for_hours": (429, {"error": {"message": "slow down"}}, {"Retry-After": "7200"}),
    "overloaded": (529, {"error": {"message": "overloaded"}}, {}),
    "no_workers": (503, {"error": "loading"}, {}),
    "no_credit": (429, {"error": {"message": "You have no credit.", "code": "insufficient_quota"}}, {}),
    "error_200": (200, {"error": {"message": "the model is gone"}}, {}),
    "error_200_busy": (200, {"error": {"message": "rate limited", "code": 429}}, {}),
    "no_choices": (200, {"choices": []}, {}),
    "no_text": (200, {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": None}, {}),
    "aborted": (200, {"choices": [{"text": "On", "finish_reason": "abort"}]}, {}),
    "openai_400": (400, {"error": {"message": "top_k: unknown field", "code": "unknown_parameter"}}, {}),
    "vllm_400": (400, {"object": "error", "message": "top_k: unknown field", "code": 400}, {}),
    "detail_422": (422, {"detail": "top_k: unknown field"}, {}),
    "too_long": (400, {"error": {"message": "This model's maximum context length is 8 tokens."}}, {}),
    "crash_500": (500, {"error": "internal"}, {}),
    "denied": (401, {"error": {"message": "Incorrect API key provided: sk-secret"}}, {}),
}


class ScriptedEndpoint(ScriptedHttp):
    """Says `SAID` to everybody, a byte a token; `script` has the acts of its first generations.

    bodies      the generations it was asked for, after those by which a client gets to know it
    keys        the Authorization headers it was sent, over all requests
    dropped     generations that a client did not wait for
    says_ended  tells a stop string from the end of the text, as vLLM does
    usage       counts tokens
    prefill     how it takes an answer begun: `goes_on`, `new_turn`, `trims`
    """

    def __init__(
        self,
        script: Iterable[Act] = (),
        *,
        says_ended: bool = True,
        usage: bool = True,
        prefill: str = "goes_on",
        models: Iterable[str] | None = ("toy",),
        any_model: bool = False,
        key: str | None = None,
        port: int = 0,
    ) -> None:
        self.script, self.says_ended, self.usage, self.prefill = list(script), says_ended, usage, prefill
        self.models, self.any_model, self.key = None if models is None else list(models), any_model, key
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: set[str | None] = set()
        self.dropped = self.under_way = self.most = 0
        self.let_go = asyncio.Event()
        super().__init__(port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def release(self) -> None:
        """Lets those that hang come to their end."""

        async def go() -> None:
            self.let_go.set()

        self._loop.run(go())

    async def _respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        path, body = request.path, request.body
        self.keys.add(request.fields.get("authorization"))
        if self.key is not None and request.fields.get("authorization") != f"Bearer {self.key}":
            return await _send(writer, *ERRORS["denied"])
        if path == "/v1/models":
            if self.models is None:
                return await _send(writer, 404, {"detail": "Not Found"})
            rows = [{"id": model, "max_model_len": 100} for model in self.models]
            return await _send(writer, 200, {"object": "list", "data": rows})
        if not self.any_model and body["model"] not in (self.models or ["toy"]):
            return await _send(writer, 404, {"error": {"message": f"no model {body['model']}"}})
        if body.get("max_tokens", 0) == 1 and "temperature" not in body:  # a client that looks around
            return await _send(writer, 200, self._reply(path, body))
        return await self._generate(request, writer)

    async def _generate(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        path, body = request.path, request.body
        self.bodies.append(body)
        self.paths.append(path)
        act: Act = self.script.pop(0) if self.script else "ok"
        if act == "full_until":
            return await _send(
                writer, 503, {"error": "later"}, {"Retry-After": formatdate(time.time() + 2, usegmt=True)}
            )
        if act in ERRORS:
            return await _send(writer, *ERRORS[act])
        if act == "die":
            return False
        if act == "html":
            return await _send(writer, 200, "<html>")
        if act == "hang" and not await self._hangs(request.rest):
            return False
        if body["stream"]:
            return await self._streams(request, writer, broken=act == "cut")
        reply = self._reply(path, body)
        if act == "filtered":
            reply["choices"][0]["finish_reason"] = "content_filter"
        return await _send(writer, 200, reply, cut=act == "cut")

    async def _hangs(self, rest: asyncio.StreamReader) -> bool:
        """Whether the client was still there when it was let go."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        gone = asyncio.create_task(rest.read(1))
        go = asyncio.create_task(self.let_go.wait())
        await asyncio.wait({gone, go}, return_when=asyncio.FIRST_COMPLETED)
        self.under_way -= 1
        left = gone.done() and not go.done()
        self.dropped += left
        gone.cancel()
        go.cancel()
        return not left

    def _reply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        most = body.get("max_tokens") or body["max_completion_tokens"]
        end = first_stop(SAID, body.get("stop", ()))
        said = SAID[: end or len(SAID)]
        matched = next((stop for stop in body.get("stop", ()) if end and said.endswith(stop)), None)
        long = len(said.encode()) > most
        said = said[:most] if long else said
        finish = "length" if long else "stop"
        shown = said.removesuffix(matched) if matched and not long else said
        told = {"text": shown} if path == "/v1/completions" else {"message": {"role": "assistant", "content": shown}}
        choice: dict[str, Any] = {"index": 0, **told, "finish_reason": finish}
        if self.says_ended:
            choice["stop_reason"] = None if long else matched
        if body.get("logprobs"):
            choice["logprobs"] = {"tokens": list(said), "token_logprobs": [-0.5] * len(said)}
        counted = {
            "prompt_tokens": self._length(body),
            "completion_tokens": len(said),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        return {"choices": [choice], "usage": counted if self.usage else None}

    def _length(self, body: dict[str, Any]) -> int:
        """Of a prompt, a word a token; an answer begun is a word, its blank line another."""
        length = 10
        if body.get("continue_final_message"):
            said = body["messages"][-1]["content"]
            length += len(said.split()) + (said.endswith("\n\n") and self.prefill != "trims")
            length += 5 * (self.prefill == "new_turn")
        return length

    async def _streams(self, request: Request, writer: asyncio.StreamWriter, *, broken: bool) -> bool:
        """A byte an event, for as long as there is a reader."""
        writer.write(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        gone = asyncio.create_task(request.rest.read(1))
        said = SAID[: request.body["max_tokens"]]
        for i, letter in enumerate(said[:3] if broken else said):
            finish = None if i + 1 < len(said) else ("stop" if said == SAID else "length")
            piece = {"text": letter} if request.path == "/v1/completions" else {"delta": {"content": letter}}
            writer.write(f"data: {json.dumps({'choices': [{**piece, 'finish_reason': finish}]})}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(0.02)
            if gone.done():
                self.dropped += 1
                return False
        if not broken:
            counted = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 99}}
            writer.write(f"data: {json.dumps(counted)}\n\ndata: [DONE]\n\n".encode())
        gone.cancel()
        return False


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: Any,
    headers: dict[str, str] | None = None,
    *,
    cut: bool = False,
) -> bool:
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    writer.write(f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(content)}\r\n\r\n".encode())
    writer.write(content[: len(content) // 2] if cut else content)
    await writer.drain()
    return not cut

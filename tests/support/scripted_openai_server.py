"""An HTTP server with the part of OpenAI's protocol that the client uses; it fails where the script says so."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from typing import Any, Literal

from reason.engines.openai_api.response import find_first_stop
from tests.support.scripted_http import ScriptedHttp, ScriptedRequest, send_json

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
    "stall",
    "html",
    "error_200",
    "error_200_busy",
    "error_200_with_key",
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
"""Reactions to a completion: a reply; a status; a closed socket; half a reply; none; a 200 that is no reply.

`stall` sends the beginning of a stream and then nothing.
"""

REPLY_TEXT = "One.\n\nTwo."
ERRORS: dict[str, tuple[int, Any, dict[str, str]]] = {
    "full": (429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, {"Retry-After": "0.4"}),
    "full_for_hours": (429, {"error": {"message": "slow down"}}, {"Retry-After": "7200"}),
    "overloaded": (529, {"error": {"message": "overloaded"}}, {}),
    "no_workers": (503, {"error": "loading"}, {}),
    "no_credit": (429, {"error": {"message": "You have no credit.", "code": "insufficient_quota"}}, {}),
    "error_200": (200, {"error": {"message": "the model is gone"}}, {}),
    "error_200_busy": (200, {"error": {"message": "rate limited", "code": 429}}, {}),
    "error_200_with_key": (200, {"error": {"message": "refused:\n\x1b[31mBearer sk-secret"}}, {}),
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


def read_begun_answer(body: dict[str, Any]) -> str:
    """Returns the text that a request for a chat completion is to continue; "" where it begins an answer."""
    return body["messages"][-1]["content"] if body.get("continue_final_message") else ""


class ScriptedOpenAIServer(ScriptedHttp):
    """Replies `REPLY_TEXT` to every request, one token per byte; `script` has the reactions to the first generations.

    bodies      bodies of the generations, without those of the client's probes
    keys        Authorization headers of all requests
    dropped     generations that the client did not wait for
    says_ended  tells a stop string from the end of the text, as vLLM does
    usage       counts tokens
    prefill     reaction to a begun answer: `goes_on`, `new_turn`, `trims`
    knows_tags  whether it knows a closing tag in the begun answer; else all behind that is a thought, too
    pause_s     seconds between two tokens of a stream
    most_top    log-probabilities of likely tokens that it sends at most
    messages    chat messages in place of the usual ones, one a generation; the last one for all further ones
    write       returns the text behind a begun answer, in the place of `REPLY_TEXT`; "" begins one
    tags        of the thought that it takes out of that text and sends apart, as a reasoning parser does; None: none
    thought     fields of every chat message beside its text, or in its place: `{"reasoning": "hm", "content": None}`
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
        self.thought: dict[str, str | None] = {}
        self.messages: list[dict[str, Any]] = []
        self.write: Callable[[str], str] = lambda _: REPLY_TEXT
        self.tags: tuple[str, str] | None = None
        self.knows_tags = True
        self.most_top, self.pause_s = 20, 0.02
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: set[str | None] = set()
        self.dropped = self.under_way = self.max_under_way = 0
        self.let_go = asyncio.Event()
        super().__init__(port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def release(self) -> None:
        """Completes the requests that hang."""

        async def go() -> None:
            self.let_go.set()

        self._loop.run(go())

    async def _respond(self, request: ScriptedRequest, writer: asyncio.StreamWriter) -> bool:
        path, body = request.path, request.body
        self.keys.add(request.fields.get("authorization"))
        if self.key is not None and request.fields.get("authorization") != f"Bearer {self.key}":
            return await send_json(writer, *ERRORS["denied"])
        if path == "/v1/models":
            if self.models is None:
                return await send_json(writer, 404, {"detail": "Not Found"})
            rows = [{"id": model, "max_model_len": 100} for model in self.models]
            return await send_json(writer, 200, {"object": "list", "data": rows})
        if not self.any_model and body["model"] not in (self.models or ["toy"]):
            return await send_json(writer, 404, {"error": {"message": f"no model {body['model']}"}})
        if body.get("max_tokens", 0) == 1 and "temperature" not in body:  # a probe
            return await send_json(writer, 200, self._reply(path, body))
        return await self._generate(request, writer)

    async def _generate(self, request: ScriptedRequest, writer: asyncio.StreamWriter) -> bool:
        path, body = request.path, request.body
        self.bodies.append(body)
        self.paths.append(path)
        act: Act = self.script.pop(0) if self.script else "ok"
        if act == "full_until":
            return await send_json(
                writer, 503, {"error": "later"}, {"Retry-After": formatdate(time.time() + 2, usegmt=True)}
            )
        if act in ERRORS:
            return await send_json(writer, *ERRORS[act])
        if act == "die":
            return False
        if act == "html":
            return await send_json(writer, 200, "<html>")
        if act == "hang" and not await self._hangs(request.rest):
            return False
        if body["stream"] and not self.messages:  # scripted messages come whole, from a server that does not stream
            return await self._streams(request, writer, act)
        reply = self._reply(path, body)
        if act == "filtered":
            reply["choices"][0]["finish_reason"] = "content_filter"
        return await send_json(writer, 200, reply, cut=act == "cut")

    async def _hangs(self, rest: asyncio.StreamReader) -> bool:
        """Returns whether the client was still connected at `release`."""
        self.under_way += 1
        self.max_under_way = max(self.max_under_way, self.under_way)
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
        begun = read_begun_answer(body)
        whole = self.write(begun)
        end = find_first_stop(whole, body.get("stop", ()))
        text = whole[: end or len(whole)]
        matched = next((stop for stop in body.get("stop", ()) if end and text.endswith(stop)), None)
        long = len(text.encode()) > most
        text = text[:most] if long else text
        finish = "length" if long else "stop"
        shown = text.removesuffix(matched) if matched and not long else text
        message: dict[str, str | None] = {"role": "assistant", **self._parse_thought(begun, shown), **self.thought}
        content: dict[str, Any] = {"text": shown} if path == "/v1/completions" else {"message": message}
        choice: dict[str, Any] = {"index": 0, **content, "finish_reason": finish}
        if self.messages and "temperature" in body:  # no probe
            message = self.messages.pop(0) if len(self.messages) > 1 else self.messages[0]
            choice["message"] = {"role": "assistant", "content": None, **message}
            choice["finish_reason"] = "tool_calls" if message.get("tool_calls") else "stop"
        if self.says_ended:
            choice["stop_reason"] = None if long else matched
        if body.get("logprobs"):
            best = {f"token {i}": -0.5 - i for i in range(min(body["logprobs"], self.most_top))}
            choice["logprobs"] = {
                "tokens": list(text),
                "token_logprobs": [-0.5] * len(text),
                "top_logprobs": [best] * len(text),
            }
        counted = {
            "prompt_tokens": self._length(body),
            "completion_tokens": len(text),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        return {"choices": [choice], "usage": counted if self.usage else None}

    def _parse_thought(self, begun: str, text: str) -> dict[str, str | None]:
        """Returns the fields of a reply; a thought goes up to its closing tag, which the begun answer may have."""
        if self.tags is None or (self.knows_tags and self.tags[1] in begun):
            return {"content": text}
        thought, closing, behind = text.partition(self.tags[1])
        return {"reasoning_content": thought.removeprefix(self.tags[0]), "content": behind if closing else None}

    def _length(self, body: dict[str, Any]) -> int:
        """Returns the length of a prompt; each word of a begun answer is a token, its blank line another."""
        length = 10
        if text := read_begun_answer(body):
            length += len(text.split()) + (text.endswith("\n\n") and self.prefill != "trims")
            length += 5 * (self.prefill == "new_turn")
        return length

    async def _streams(self, request: ScriptedRequest, writer: asyncio.StreamWriter, act: Act) -> bool:
        """Writes one event per byte, for as long as the client is connected."""
        broken = act in ("cut", "stall")
        writer.write(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        gone = asyncio.create_task(request.rest.read(1))
        begun = read_begun_answer(request.body)
        whole = self.write(begun)
        text = whole[: request.body["max_tokens"]]
        fields = {"text": text} if request.path == "/v1/completions" else self._parse_thought(begun, text)
        letters = [(name, letter) for name, part in fields.items() for letter in part or ""]
        for i, (name, letter) in enumerate(letters[:3] if broken else letters):
            finish = None if i + 1 < len(letters) else ("stop" if text == whole else "length")
            piece = {name: letter} if name == "text" else {"delta": {name: letter}}
            writer.write(f"data: {json.dumps({'choices': [{**piece, 'finish_reason': finish}]})}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(self.pause_s)
            if gone.done():
                self.dropped += 1
                return False
        if act == "stall":
            await gone
            self.dropped += 1
        if not broken:
            counted = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": len(text)}}
            writer.write(f"data: {json.dumps(counted)}\n\ndata: [DONE]\n\n".encode())
        gone.cancel()
        return False

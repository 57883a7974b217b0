"""An HTTP server with the part of SGLang's protocol that the client uses; it fails where the script says so."""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

from tests.support.scripted_http import ScriptedHttp, ScriptedRequest, send_json

Act = Literal["ok", "full", "die", "cut", "hang", "native_400", "openai_400", "too_long", "crash_500", "no_workers"]
"""Reactions to /generate: a reply; a full queue; a closed socket; half a reply; a reply after an abort; errors."""

ERRORS: dict[str, tuple[int, Any]] = {
    "full": (503, {"error": {"message": "The request queue is full."}}),
    "native_400": (400, {"error": {"message": "top_p must be in (0, 1]"}}),
    "openai_400": (400, {"object": "error", "message": "top_p must be in (0, 1]", "code": 400}),
    "too_long": (400, {"error": {"message": "The input (9 tokens) is longer than the model's context length (8)."}}),
    "crash_500": (500, {"error": "internal"}),
    "no_workers": (503, {"error": {"code": "no_available_workers", "message": "All workers are unavailable"}}),
}


class ScriptedSGLangServer(ScriptedHttp):
    """Replies `text` to every request, one token per byte and an end token; `script` has the first reactions.

    bodies, aborted   bodies of all /generate requests, ids of all aborted ones
    router            has only the endpoints that SGLang's router passes on
    temper            returns log-probabilities after temperature, which is SGLang's default
    seeded            replies with tokens that the seed and their position decide, as many as are requested
    cut_after         tokens of a stream after which "cut" closes the connection
    increments        sends the new tokens in each event of a stream, and not all of them
    decode            its tokenizer, in the place of bytes
    write             returns the whole reply to input ids, its end token included, in the place of `text`
    """

    def __init__(
        self,
        script: Iterable[Act] = (),
        *,
        text: str = "hello",
        vocab_size: int = 257,
        temper: bool = False,
        router: bool = False,
        seeded: bool = False,
        cut_after: int = 3,
        increments: bool = True,
        info: dict[str, Any] | None = None,
        port: int = 0,
    ) -> None:
        self.script, self.text, self.vocab_size, self.temper = list(script), text, vocab_size, temper
        self.router, self.seeded, self.cut_after, self.increments = router, seeded, cut_after, increments
        self.info: dict[str, Any] = {"version": "0", "context_length": 4096, "enable_deterministic_inference": True}
        self.info |= {"incremental_streaming_output": increments} | (info or {})
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.under_way: dict[str, asyncio.Event] = {}
        self.hanging = True
        self.decode: Callable[[list[int]], str] = _text
        self.write: Callable[[list[int]], list[int]] | None = None
        super().__init__(port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def generations(self) -> list[dict[str, Any]]:
        """The requests of branches: without the client's probes, and without those that generate nothing."""
        return [body for body in self.bodies if body["sampling_params"].get("custom_params") or self.reads(body)]

    @staticmethod
    def reads(body: dict[str, Any]) -> bool:
        """Returns whether a body requests outputs of a reward model and is no probe."""
        is_query = "logprob_start_len" in body and ("token_ids_logprob" in body or "top_logprobs_num" in body)
        return is_query and body["input_ids"] != [0, 0]

    def release(self) -> None:
        """Completes the requests that hang."""

        async def let_go() -> None:
            self.hanging = False
            for waits in self.under_way.values():
                waits.set()

        self._loop.run(let_go())

    async def _respond(self, request: ScriptedRequest, writer: asyncio.StreamWriter) -> bool:
        path, body = request.path, request.body
        if path == "/generate":
            return await self._generate(body, writer)
        if self.router and path in ("/model_info", "/server_info", "/abort_request"):
            return await send_json(writer, 404, "")
        if path == "/health":
            return await send_json(writer, 200, "")
        if path in ("/model_info", "/get_model_info"):
            return await send_json(writer, 200, {"is_generation": True, "served_model_name": "toy"})
        if path == "/server_info":
            return await send_json(writer, 200, self.info)
        if path == "/v1/detokenize":
            return await send_json(writer, 200, {"text": [self.decode(ids) for ids in body["tokens"]]})
        assert path == "/abort_request"
        self.aborted.append(body["rid"])
        if body["rid"] in self.under_way:
            self.under_way[body["rid"]].set()
        return await send_json(writer, 200, {})

    async def _generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(body)
        biased = [int(token) for token in body["sampling_params"].get("logit_bias", {})]
        if any(token >= self.vocab_size for token in biased):
            return await send_json(writer, 400, {"error": {"message": "logit_bias must has keys in the vocabulary"}})
        branch = "custom_params" in body["sampling_params"] or self.reads(body)
        act: Act = self.script.pop(0) if self.script and branch else "ok"
        if act in ERRORS:
            return await send_json(writer, *ERRORS[act])
        if act == "die":
            return False
        if body.get("stream"):
            return await self._stream(body, writer, act)
        if act == "cut":
            return await send_json(writer, 200, self._reply(body), cut=True)
        if act == "hang":
            self.under_way[body["rid"]] = asyncio.Event()
            await self.under_way[body["rid"]].wait()
            return await send_json(writer, 200, self._reply(body, stopped="abort" if self.hanging else ""))
        return await send_json(writer, 200, self._reply(body))

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter, act: Act) -> bool:
        """Writes a stream; "cut" closes the connection after `cut_after` tokens, "hang" waits there for an abort."""
        writer.write(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        whole, interval = self._reply(body), body["sampling_params"]["stream_interval"]
        sent = 0
        while sent < len(whole["output_ids"]):
            upto = min(sent + interval, len(whole["output_ids"]))
            if act in ("cut", "hang"):
                upto = min(upto, self.cut_after)
            is_end = upto == len(whole["output_ids"]) and act not in ("cut", "hang")
            writer.write(self._encode_event(whole, sent, upto, is_end=is_end))
            await writer.drain()
            sent = upto
            if act == "cut" and sent == self.cut_after:
                return False
            if act == "hang" and sent == self.cut_after:
                self.under_way[body["rid"]] = asyncio.Event()
                await self.under_way[body["rid"]].wait()
                stopped = {**whole, "meta_info": {**whole["meta_info"], "finish_reason": {"type": "abort"}}}
                writer.write(self._encode_event(stopped, sent, sent, is_end=True))
                break
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        return False

    def _encode_event(self, whole: dict[str, Any], sent: int, upto: int, *, is_end: bool) -> bytes:
        start = sent if self.increments else 0
        meta = {**whole["meta_info"], "completion_tokens": upto}
        meta |= {name: meta[name][start:upto] for name in ("output_token_logprobs", "output_top_logprobs")}
        meta |= {} if is_end else {"finish_reason": None}
        event = {"text": "", "output_ids": whole["output_ids"][start:upto], "meta_info": meta}
        return f"data: {json.dumps(event)}\n\n".encode()

    def _write_tokens(self, body: dict[str, Any]) -> list[int]:
        if self.write is not None:
            return self.write(body["input_ids"])
        if not self.seeded:
            return [*self.text.encode(), 256]
        seed, begin = body["sampling_params"].get("sampling_seed", 0), len(body["input_ids"])
        count = body["sampling_params"]["max_new_tokens"]
        return [zlib.crc32(f"{seed} {begin + i}".encode()) % 256 for i in range(count)]

    def _reply(self, body: dict[str, Any], stopped: str = "") -> dict[str, Any]:
        params = body["sampling_params"]
        tokens = self._write_tokens(body)[: 3 if stopped else params["max_new_tokens"]]
        warm = params["temperature"] if self.temper and params["temperature"] else 1.0
        finish = {"type": stopped or ("length" if tokens[-1:] != [256] else "stop"), "matched": 256}
        meta = {
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(tokens),
            "cached_tokens": len(body["input_ids"]) - 1,
            "output_token_logprobs": [[-1.0 / warm, token, None] for token in tokens],
            "output_top_logprobs": [[[-1.0 / warm, 1, None], [-3.0 / warm, 2, None]] for _ in tokens],
        }
        if "logprob_start_len" in body:
            read = body["input_ids"][body["logprob_start_len"] :]
            meta["input_token_logprobs"] = [[None, read[0], None], *([-1.0, token, None] for token in read[1:])]
            best = [[-0.5 - i, 7 + i, None] for i in range(body.get("top_logprobs_num", 1))]
            meta["input_top_logprobs"] = [None, *(best for _ in read[1:])]
            after = [[[logprob, i, None] for i, logprob in enumerate(label_logprobs(token))] for token in read]
            meta["input_token_ids_logprobs"] = [None, *after[:-1]]
            meta["output_token_ids_logprobs"] = after[-1:]
        return {"text": "", "output_ids": tokens, "meta_info": meta}


def label_logprobs(token: int) -> tuple[float, float]:
    """Returns the log-probabilities of the only two tokens that may follow a token."""
    share = (token % 10 + 1) / 12
    return math.log(share), math.log(1 - share)


class ByteVocabulary:
    """A tokenizer whose ids 0 to 255 are bytes; 256 ends a text."""

    eos_token_id = 256

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(257)}

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        assert not skip_special_tokens
        return _text(ids)


def _text(ids: Iterable[int]) -> str:
    return b"".join(bytes([i]) if i < 256 else b"<end>" for i in ids).decode(errors="replace")

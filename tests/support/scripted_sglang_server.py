"""An HTTP server with the part of SGLang's protocol that the client uses; it fails where the script says so."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
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
    """

    def __init__(
        self,
        script: Iterable[Act] = (),
        *,
        text: str = "hello",
        vocab_size: int = 257,
        temper: bool = False,
        router: bool = False,
        info: dict[str, Any] | None = None,
        port: int = 0,
    ) -> None:
        self.script, self.text, self.vocab_size, self.temper = list(script), text, vocab_size, temper
        self.router = router
        self.info = {"version": "0", "context_length": 4096, "enable_deterministic_inference": True} | (info or {})
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.under_way: dict[str, asyncio.Event] = {}
        self.hanging = True
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
        if path in ("/model_info", "/get_model_info"):
            return await send_json(writer, 200, {"is_generation": True, "served_model_name": "toy"})
        if path == "/server_info":
            return await send_json(writer, 200, self.info)
        if path == "/v1/detokenize":
            return await send_json(writer, 200, {"text": [_text(ids) for ids in body["tokens"]]})
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
        if act == "cut":
            return await send_json(writer, 200, self._reply(body), cut=True)
        if act == "hang":
            self.under_way[body["rid"]] = asyncio.Event()
            await self.under_way[body["rid"]].wait()
            return await send_json(writer, 200, self._reply(body, stopped="abort" if self.hanging else ""))
        return await send_json(writer, 200, self._reply(body))

    def _reply(self, body: dict[str, Any], stopped: str = "") -> dict[str, Any]:
        params = body["sampling_params"]
        tokens = [*self.text.encode(), 256][: 3 if stopped else params["max_new_tokens"]]
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

"""Replies of a healthy server in two dialects: what a hostile server answers before it turns, and what it distorts."""

from __future__ import annotations

import json
from typing import Any, Literal

from tests.support.scripted_http import ScriptedRequest

Dialect = Literal["openai", "openai-stream", "sglang"]
"""OpenAI's API; the same without the end cause of a text, so that steps are streamed; SGLang's native API."""

REPLY_TEXT = "One.\n\nTwo."
END_TOKEN = 256
MODEL = "toy"


def build_reply(dialect: Dialect, request: ScriptedRequest) -> Any:
    """Returns the JSON with which a healthy server answers; texts are `REPLY_TEXT`, a token per byte."""
    return (
        _sglang_reply(request) if dialect == "sglang" else _openai_reply(request, names_end_cause=dialect == "openai")
    )


def encode_events(reply: Any) -> bytes:
    """Returns a reply as a stream of events: the choices, then the usage, as servers send them."""
    if not isinstance(reply, dict):
        return encode_event(json.dumps(reply)) + encode_event("[DONE]")
    choices = encode_event(json.dumps({key: value for key, value in reply.items() if key != "usage"}))
    usage = encode_event(json.dumps({"choices": [], "usage": reply["usage"]})) if "usage" in reply else b""
    return choices + usage + encode_event("[DONE]")


def encode_event(data: str) -> bytes:
    return f"data: {data}\n\n".encode(errors="surrogatepass")


def _openai_reply(request: ScriptedRequest, *, names_end_cause: bool) -> Any:
    if request.path.endswith("/models"):
        return {"object": "list", "data": [{"id": MODEL, "max_model_len": 4096}]}
    text = REPLY_TEXT[: request.body["max_tokens"]]
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": "stop" if text == REPLY_TEXT else "length",
        "logprobs": {"tokens": list(text), "token_logprobs": [-0.5] * len(text)},
    }
    if names_end_cause:
        choice["stop_reason"] = None
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": len(text),
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    return {"choices": [choice], "usage": usage}


def _sglang_reply(request: ScriptedRequest) -> Any:
    if request.path in ("/model_info", "/get_model_info"):
        return {"is_generation": True, "served_model_name": MODEL}
    if request.path == "/server_info":
        return {"version": "0", "context_length": 4096, "enable_deterministic_inference": True}
    if request.path == "/v1/detokenize":
        return {"text": [_decode(tokens) for tokens in request.body["tokens"]]}
    if request.path != "/generate":  # an abort, or /health
        return {}
    tokens = [*REPLY_TEXT.encode(), END_TOKEN][: request.body["sampling_params"]["max_new_tokens"]]
    is_ended = tokens[-1:] == [END_TOKEN]
    meta = {
        "finish_reason": {"type": "stop", "matched": END_TOKEN} if is_ended else {"type": "length"},
        "prompt_tokens": len(request.body["input_ids"]),
        "completion_tokens": len(tokens),
        "cached_tokens": len(request.body["input_ids"]) - 1,
        "output_token_logprobs": [[-1.0, token, None] for token in tokens],
        "output_top_logprobs": [[[-1.0, 1, None], [-3.0, 2, None]]],
    }
    return {"text": "", "output_ids": tokens, "meta_info": meta}


def _decode(tokens: list[int]) -> str:
    """Decodes as `ByteVocabulary` does."""
    return b"".join(bytes([token]) if token < END_TOKEN else b"<end>" for token in tokens).decode(errors="replace")

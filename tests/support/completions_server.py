"""A raw /v1/completions over the local engine, as vLLM or llama.cpp have for other models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.engines.openai_api.response import find_first_stop
from reason.solver import Solver
from tests.support.app_server import AppServer


class CompletionsServer(AppServer):
    """Serves the model of `solver`, whose tokenizer is `tokenizer`.

    says_ended  tells a stop string from the end of the text, as vLLM does and llama.cpp does not
    """

    def __init__(self, solver: Solver, tokenizer: Any, *, says_ended: bool) -> None:
        self._solver, self._tokenizer, self._says_ended = solver, tokenizer, says_ended
        self.requests = 0
        app = FastAPI()
        app.get("/v1/models")(lambda: {"data": [{"id": "bundled"}]})
        app.post("/v1/completions", response_model=None)(self.complete)
        super().__init__(app)

    def complete(self, body: dict[str, Any]) -> dict[str, Any] | StreamingResponse:
        """Writes one completion, whole or token by token."""
        self.requests += 1
        generation = self._generate(body)
        if body.get("stream"):
            return StreamingResponse(self._events(generation), media_type="text/event-stream")
        text = self._text(generation.tokens)
        end = find_first_stop(text, body.get("stop", ()))
        matched = next((stop for stop in body.get("stop", ()) if end and text[:end].endswith(stop)), None)
        shown = text if end is None or matched is None else text[: end - len(matched)]
        finish = "length" if generation.finish == "length" else "stop"
        choice = {"index": 0, "text": shown, "finish_reason": finish}
        if body.get("logprobs"):
            assert generation.top_logprobs is not None
            choice["logprobs"] = {
                "tokens": [self._text((token,)) for token in generation.tokens],
                "token_logprobs": list(generation.logprobs),
                "top_logprobs": [
                    {f"token {i}": float(value) for i, value in enumerate(row)} for row in generation.top_logprobs
                ],
            }
        return {"choices": [choice | ({"stop_reason": matched} if self._says_ended else {})], **self._usage(generation)}

    def _generate(self, body: dict[str, Any]) -> Generation:
        params = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body.get("temperature", 1.0),
            top_p=body.get("top_p", 1.0),
            top_k=max(0, body.get("top_k", 0)),
            stop=tuple(body.get("stop", ())),
        )
        prefix = tuple(self._tokenizer.encode(body["prompt"]))
        num_top = body.get("logprobs", 0)
        request = GenerationRequest(prefix=prefix, params=params, seed=body.get("seed", 0), num_top=num_top)
        (generation,) = self._solver.run_coroutine(self._solver.engine.generate([request]))
        assert isinstance(generation, Generation)
        return generation

    def _events(self, generation: Generation) -> Iterator[str]:
        last = len(generation.tokens) - 1
        for i, token in enumerate(generation.tokens):
            finish = None if i < last else ("length" if generation.finish == "length" else "stop")
            choice = {"text": self._text((token,)), "finish_reason": finish}
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
        yield f"data: {json.dumps({'choices': [], **self._usage(generation)})}\n\ndata: [DONE]\n\n"

    def _usage(self, generation: Generation) -> dict[str, Any]:
        spent = generation.usage
        return {"usage": {"prompt_tokens": spent.prompt_tokens, "completion_tokens": len(generation.tokens)}}

    def _text(self, tokens: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

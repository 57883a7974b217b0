"""Writes one generation as the JSON of a request to /completions or /chat/completions. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from decoding.core import SamplingParams
from reason.models.byte_tokenizer import parse_conversation

NEUTRAL = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0}
"""The value at which each field of `SamplingParams` changes nothing."""

JsonBody = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class RequestFormat:
    """How requests to these servers are written; `conf/engine/openai.yaml` describes the settings."""

    model: str
    chat: bool
    prefill: bool = False
    logprobs: bool = False
    max_tokens_field: str = "max_tokens"
    omit: tuple[str, ...] = ()
    extra_body: Mapping[str, object] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The endpoint that requests go to."""
        return "/chat/completions" if self.chat else "/completions"

    def validate_params(self, params: SamplingParams) -> None:
        """Raises ValueError for sampling parameters that would not reach the servers."""
        for name, neutral in NEUTRAL.items():
            value = getattr(params, name)
            if name in self.omit and value != neutral:
                raise ValueError(f"{name}={value} is not sent (engine.omit); set search.sampling.{name}={neutral}")
        if params.stop_token_ids:
            raise ValueError("search.sampling.stop_token_ids are ids and servers are sent text; choose stop")

    def build_prompt(self, text: str) -> JsonBody:
        """Returns the fields with the text to continue. Raises: ValueError where these servers cannot continue it."""
        if not self.chat:
            return {"prompt": text}
        parsed = parse_conversation(text)
        if parsed is None:
            raise ValueError("engine.api=chat takes conversations, not texts to continue; choose api=completions")
        fields, answer = parsed
        if not answer:
            return fields
        if not self.prefill:
            raise ValueError("engine.api=chat begins every answer anew; to continue one set engine.prefill=true")
        conversation = cast(Sequence[Mapping[str, str]], fields["messages"])
        messages = [*conversation, {"role": "assistant", "content": answer}]
        return {**fields, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}

    def has_field(self, text: str, name: str) -> bool:
        """Returns whether the conversation with which this text begins has such a field of the request, as `tools`."""
        return self.chat and (parsed := parse_conversation(text)) is not None and bool(parsed[0].get(name))

    def build_body(
        self,
        text: str,
        params: SamplingParams,
        seed: int,
        *,
        stream: bool = False,
        num_top: int = 0,
        json_schema: str | None = None,
    ) -> JsonBody:
        """Returns the body of a request. A streamed one has no stop strings, so that the server returns them.

        All sampling fields are sent, because defaults differ: vLLM takes them from the model, llama.cpp has a top_k and
        a min_p. Chat servers may not know those two and receive them only where they change something.
        """
        filters = {"temperature": params.temperature, "top_p": params.top_p}
        filters |= {"top_k": params.top_k or -1, "min_p": params.min_p}
        effective = {name for name, neutral in NEUTRAL.items() if getattr(params, name) != neutral}
        left_out = {*self.omit, *({"top_k", "min_p"} - effective if self.chat else ())}
        sampling = {**filters, "seed": seed & 0x7FFFFFFF}  # not all servers take more than 31 bits
        return {
            **self.build_prompt(text),
            "model": self.model,
            self.max_tokens_field: params.max_tokens,
            **{name: value for name, value in sampling.items() if name not in left_out},
            **({"stop": list(params.stop)} if params.stop and not stream else {}),
            **(self._build_logprobs(num_top) if self.logprobs else {}),
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}),
            **({} if json_schema is None else {"response_format": _build_response_format(json_schema)}),
            **self.extra_body,
        }

    def _build_logprobs(self, num_top: int) -> JsonBody:
        if not self.chat:
            return {"logprobs": max(1, num_top)}
        return {"logprobs": True, **({"top_logprobs": num_top} if num_top else {})}

    def build_probe(self, answer: str | None = None) -> JsonBody:
        """Returns the body of a request for one token, with server defaults; `answer` is text to continue in a chat."""
        if not self.chat:
            prompt: JsonBody = {"prompt": "?"}
        else:
            prompt = {"messages": [{"role": "user", "content": "?"}]}
        if answer is not None:
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
            prompt = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        return {"model": self.model, **prompt, self.max_tokens_field: 1, **self.extra_body}


def _build_response_format(json_schema: str) -> JsonBody:
    schema = {"name": "reply", "schema": json.loads(json_schema)}
    return {"type": "json_schema", "json_schema": schema}

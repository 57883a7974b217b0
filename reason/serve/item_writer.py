"""Builds the bodies of `/v1/responses`, complete and as typed events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from reason.serve.choices import CompletionChoice, SearchBlock, UsageBlock
from reason.serve.deltas import TextDelta, split_text
from reason.serve.items import ResponsesRequest
from reason.serve.json_schema import write_canonical
from reason.serve.live_reply import LiveReply
from reason.serve.responses import encode_json
from reason.serve.wire import KEEP_ALIVE, Fields, list_logprobs
from reason.thinking import SplitText
from search.strategy import StepEvent


class ItemWriter:
    """Writes the reply to one request: items of output, and in streams the events that announce them in order.

    reply_id  32 characters; the ids of reply and items are made of it
    """

    chat = True

    def __init__(self, body: ResponsesRequest, reply_id: str, created: int, model: str) -> None:
        self._body, self._id, self._created, self._model = body, reply_id, created, model
        self._num_events = 0

    def complete_body(
        self, choices: Sequence[CompletionChoice], usage: UsageBlock, search: SearchBlock
    ) -> dict[str, object]:
        """Returns the body of a response that is not streamed."""
        (choice, *_) = choices
        is_cut = choice.finish_reason == "length"
        return {
            **self._head("incomplete" if is_cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._items(choice),
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
            "search": {**search, "score": choice.score},
        }

    def first_chunk(self) -> bytes:
        """Returns the events that open a stream."""
        head = self._head("in_progress")
        return self._event("response.created", response=head) + self._event("response.in_progress", response=head)

    def progress_chunk(self, event: StepEvent, tokens: int) -> bytes:
        """Returns a comment: this API has no event for what may be discarded."""
        return KEEP_ALIVE

    def live_chunk(self, part: SplitText) -> bytes:
        """Returns a comment: items come whole."""
        return KEEP_ALIVE

    def last_chunks(
        self, choices: Sequence[CompletionChoice], usage: UsageBlock, search: SearchBlock, sent: LiveReply
    ) -> Iterator[bytes]:
        """Yields the events of each item, then that of the whole reply."""
        body = self.complete_body(choices, usage, search)
        deltas = [] if choices[0].text is None else split_text(choices[0].text, choices[0].logprobs)
        for index, item in enumerate(self._items(choices[0])):
            yield from self._item_events(index, item, deltas)
        yield self._event(f"response.{body['status']}", response=body)

    def error_chunk(self, error: Mapping[str, Mapping[str, str | None]]) -> bytes:
        """Returns the event that ends a stream with an error."""
        about = {name: value for name, value in error["error"].items() if name != "type"}
        return self._event("error", **about, error=error["error"])

    def _head(self, status: str) -> dict[str, object]:
        body = self._body
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}} if body.text is None else body.text.model_dump(by_alias=True),
            "tool_choice": body.tool_choice,
            "tools": [tool.model_dump() for tool in body.tools],
            "top_logprobs": body.top_logprobs,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _items(self, choice: CompletionChoice) -> list[dict[str, object]]:
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        items: list[dict[str, object]] = []
        if choice.thought:
            content = [{"type": "reasoning_text", "text": choice.thought}]
            items.append({"id": f"rs_{self._id}", "type": "reasoning", "summary": [], "content": content})
        if choice.text is not None:
            logprobs = list_logprobs(choice.logprobs or ())
            part = {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": logprobs}
            items.append(
                {
                    "id": f"msg_{self._id}",
                    "type": "message",
                    "status": status,
                    "role": "assistant",
                    "content": [part],
                }
            )
        for number, call in enumerate(choice.calls):
            items.append(
                {
                    "id": f"fc_{self._id}_{number}",
                    "type": "function_call",
                    "call_id": f"call_{self._id}_{number}",
                    "name": call.name,
                    "arguments": write_canonical(call.arguments),
                    "status": status,
                }
            )
        return items

    def _item_events(self, index: int, item: dict[str, object], deltas: Sequence[TextDelta]) -> Iterator[bytes]:
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            (part,) = cast("list[dict[str, object]]", item["content"])
            in_part = {**place, "content_index": 0}
            yield self._event("response.output_item.added", output_index=index, item={**item, "content": []})
            yield self._event("response.content_part.added", **in_part, part={**part, "text": "", "logprobs": []})
            for delta in deltas:
                logprobs = list_logprobs(delta.logprobs or ())
                yield self._event("response.output_text.delta", **in_part, delta=delta.text, logprobs=logprobs)
            whole = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._event("response.output_text.done", **in_part, **whole)
            yield self._event("response.content_part.done", **in_part, part=part)
        elif item["type"] == "function_call":
            yield self._event("response.output_item.added", output_index=index, item={**item, "arguments": ""})
            yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield self._event(
                "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
            )
        else:
            yield self._event("response.output_item.added", output_index=index, item=item)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: object) -> bytes:
        data: Fields = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return f"event: {kind}\n".encode() + b"data: " + encode_json(data) + b"\n\n"

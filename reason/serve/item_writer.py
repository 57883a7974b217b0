"""Builds the bodies of `/v1/responses`, complete and as typed events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reason.serve.choices import CompletionChoice, SearchBlock, TokenLogprob, UsageBlock
from reason.serve.deltas import TextDelta, split_text
from reason.serve.item_events import Item, ItemEvents
from reason.serve.items import ResponsesRequest
from reason.serve.json_schema import write_canonical
from reason.serve.live_reply import LiveReply
from reason.serve.wire import KEEP_ALIVE, list_logprobs
from reason.thinking import SplitText
from search.strategy import StepEvent


class ItemWriter:
    """Writes the reply to one request: items of output, and in streams the events that announce them in order.

    reply_id  32 characters; the ids of reply and items are made of it
    """

    chat = True

    def __init__(self, body: ResponsesRequest, reply_id: str, created: int, model: str) -> None:
        self._body, self._id, self._created, self._model = body, reply_id, created, model
        self._events = ItemEvents()

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
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
            "search": {**search, "score": choice.score},
        }

    def first_chunk(self) -> bytes:
        """Returns the events that open a stream."""
        head = self._head("in_progress")
        return self._events.write_event("response.created", response=head) + self._events.write_event(
            "response.in_progress", response=head
        )

    def progress_chunk(self, event: StepEvent, tokens: int) -> bytes:
        """Returns a comment: this API has no event for what may be discarded."""
        return KEEP_ALIVE

    def live_chunk(self, part: SplitText, sent: LiveReply) -> bytes:
        """Returns the events of a part of thought, text, or both; the thought ends where the text begins."""
        thought, events = self._reasoning_item(sent.thought), b""
        if part.thought:
            if part.thought == sent.thought:
                events += self._events.begin_item(0, thought)
            events += self._events.grow_item(0, thought, TextDelta(part.thought))
        if part.text:
            index, text = int(bool(sent.thought)), self._message_item(sent.text)
            if part.text == sent.text:
                events += self._events.end_item(0, thought) if sent.thought else b""
                events += self._events.begin_item(index, text)
            events += self._events.grow_item(index, text, TextDelta(part.text))
        return events

    def last_chunks(
        self, choices: Sequence[CompletionChoice], usage: UsageBlock, search: SearchBlock, sent: LiveReply
    ) -> Iterator[bytes]:
        """Yields the events of each item that have not been `sent`, then that of the whole reply."""
        body, rest = self.complete_body(choices, usage, search), sent.drop_from(choices[0])
        for index, item in enumerate(self._items(choices[0])):
            kind = item["type"]
            if kind == "reasoning" and sent.text:  # it has ended
                continue
            if not {"reasoning": sent.thought, "message": sent.text}.get(str(kind)):
                yield self._events.begin_item(index, item)
            for delta in _list_deltas(item, rest):
                yield self._events.grow_item(index, item, delta)
            yield self._events.end_item(index, item)
        yield self._events.write_event(f"response.{body['status']}", response=body)

    def error_chunk(self, error: Mapping[str, Mapping[str, str | None]]) -> bytes:
        """Returns the event that ends a stream with an error."""
        about = {name: value for name, value in error["error"].items() if name != "type"}
        return self._events.write_event("error", **about, error=error["error"])

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
            items.append(self._reasoning_item(choice.thought))
        if choice.text is not None:
            items.append(self._message_item(choice.text, choice.logprobs, status))
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

    def _reasoning_item(self, thought: str) -> dict[str, object]:
        content = [{"type": "reasoning_text", "text": thought}]
        return {"id": f"rs_{self._id}", "type": "reasoning", "summary": [], "content": content}

    def _message_item(
        self, text: str, logprobs: Sequence[TokenLogprob] | None = None, status: str = "in_progress"
    ) -> dict[str, object]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": list_logprobs(logprobs or ())}
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [part],
        }


def _list_deltas(item: Item, rest: CompletionChoice) -> list[TextDelta]:
    """Returns what the item still gets of the choice."""
    if item["type"] == "function_call":
        return [TextDelta(str(item["arguments"]))]
    if item["type"] == "reasoning":
        return [TextDelta(rest.thought)] if rest.thought else []
    return [] if rest.text is None else split_text(rest.text, rest.logprobs)

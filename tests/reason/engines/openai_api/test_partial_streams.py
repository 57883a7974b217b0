"""What has come of a stream that breaks off, is cut by a deadline, or ends without being closed."""

from __future__ import annotations

from typing import Any

from reason.engines.openai_api.response import RequestedText, parse_completion
from reason.engines.openai_api.streaming import CompletionStream

TAGS = ("<think>", "</think>")


def chat_event(index: int = 0, finish: str | None = None, **delta: str) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def read(*events: dict[str, Any], tags: tuple[str, str] | None = TAGS) -> CompletionStream:
    stream = CompletionStream(RequestedText(stop=(), max_tokens=99, prompt_bytes=9, thought_tags=tags))
    for event in events:
        stream.add_event(event)
    return stream


def test_thought_that_was_sent_apart_is_kept_and_counted() -> None:
    partial = read(chat_event(reasoning_content="so "), chat_event(reasoning_content="4")).build_partial()
    assert partial is not None
    assert (partial.text, partial.tokens, partial.end_cause) == ("<think>so 4", 2, "unknown")
    assert partial.has_thought_apart


def test_dropped_thought_is_counted_too() -> None:
    partial = read(chat_event(reasoning_content="so "), chat_event(content="4"), tags=None).build_partial()
    assert partial is not None
    assert (partial.text, partial.tokens, partial.has_dropped_thought) == ("4", 2, True)
    assert read().build_partial() is None


def test_text_whose_end_has_come_is_no_beginning() -> None:
    stream = read(chat_event(content="4."), chat_event(finish="stop"))
    partial = stream.build_partial()
    assert stream.is_finished
    assert partial is not None
    assert partial.end_cause == "eos"
    assert not partial.has_thought_apart


def test_choices_that_were_not_asked_for_are_left_out() -> None:
    events = [chat_event(index, content=text[index]) for text in ("aA", "bB") for index in (0, 1)]
    assert read(*events).text == "ab"
    whole = {"choices": [{"index": 1, "text": "no"}, {"index": 0, "text": "yes", "finish_reason": "stop"}]}
    assert parse_completion(whole, RequestedText(stop=(), max_tokens=9, prompt_bytes=9)).text == "yes"

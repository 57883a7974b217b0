"""What a reply says is believed only where it can be true; everything else counts as not reported or as no reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reason.engines.http.errors import ResponseLost
from reason.engines.openai_api.response import RequestedText, parse_completion
from reason.engines.openai_api.streaming import CompletionStream

REQUESTED = RequestedText(stop=("\n\n",), max_tokens=20, prompt_bytes=30)
IMPOSSIBLE = [-1, 2.5, True, "7", 10**64, float("nan"), float("inf"), [7], {}, None]
NO_END: list[object] = [None, 3, ["stop"], {}, "bored"]
NO_TEXT: list[object] = [3, ["One."], {"a": 1}, True]


def reply(**changes: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": "One.", "finish_reason": "stop", "stop_reason": None} | changes]}


@pytest.mark.parametrize("count", IMPOSSIBLE)
def test_impossible_count_is_not_reported(count: object) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
    parsed = parse_completion(reply() | {"usage": usage}, REQUESTED)
    assert (parsed.tokens, parsed.prompt_tokens, parsed.cached_tokens) == (None, None, 0)
    for nonsense in (count, {"prompt_tokens_details": count}):
        assert parse_completion(reply() | {"usage": nonsense}, REQUESTED).tokens is None


def test_counts_are_compared_with_the_request() -> None:
    def counts(tokens: int, prompt: int, cached: int) -> tuple[int | None, int | None, int]:
        usage = {
            "completion_tokens": tokens,
            "prompt_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        parsed = parse_completion(reply() | {"usage": usage}, REQUESTED)
        return parsed.tokens, parsed.prompt_tokens, parsed.cached_tokens

    assert counts(20, 9, 9) == (20, 9, 9)
    assert counts(0, 9, 10) == (None, 9, 0), "a text has a token, and no more is cached than there is"
    assert counts(500, 10**6, 5) == (None, None, 5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.5, True, "-1", None, [-1], -(10**400)])
def test_impossible_logprob_makes_all_of_a_reply_not_reported(value: object) -> None:
    completion = {"tokens": ["On", "e."], "token_logprobs": [-0.5, value]}
    chat = {"content": [{"token": "One.", "logprob": value}]}
    for logprobs in (completion, chat, value, {"content": value}, {"tokens": 3, "token_logprobs": value}):
        parsed = parse_completion(reply(logprobs=logprobs), REQUESTED)
        assert (parsed.text, parsed.token_logprobs) == ("One.", ())


def test_logprob_above_zero_by_rounding_is_zero() -> None:
    logprobs = {"tokens": ["One."], "token_logprobs": [1e-6]}
    assert parse_completion(reply(logprobs=logprobs), REQUESTED).token_logprobs == (("One.", 0.0),)


@pytest.mark.parametrize(
    "body",
    [
        *([], None, 3, "text", {"choices": None}, {"choices": 7}, {"choices": [None]}, {"choices": ["text"]}),
        *[reply(finish_reason=wrong) for wrong in NO_END],
        *[reply(text=wrong) for wrong in NO_TEXT],
        reply(text="x" * 99_999),
    ],
)
def test_what_is_no_completion_is_lost(body: object) -> None:
    with pytest.raises(ResponseLost) as caught:
        parse_completion(body, REQUESTED)
    assert len(str(caught.value)) < 300


def test_halves_of_characters_are_joined_or_replaced() -> None:
    """Servers cut a character in two where they stop at a length; a tokenizer refuses the half."""
    body = json.loads(
        json.dumps(reply(text="a\ud83d\ude00b\ud800", logprobs={"tokens": ["\ud800"], "token_logprobs": [-1]}))
    )
    parsed = parse_completion(body, REQUESTED)
    assert (parsed.text, parsed.token_logprobs) == ("a😀b�", (("�", -1.0),))
    stream = CompletionStream(REQUESTED)
    for piece in ("\ud83d", "\ude00", "\ud800"):
        stream.add_event({"choices": [{"text": piece, "finish_reason": None}]})
    stream.add_event({"choices": [{"text": "", "finish_reason": "stop"}]})
    assert stream.build_response().text == "😀�"


def test_only_a_requested_stop_string_is_added_to_the_text() -> None:
    ours = parse_completion(reply(stop_reason="\n\n"), REQUESTED)
    assert (ours.text, ours.end_cause) == ("One.\n\n", "stop")
    theirs = parse_completion(reply(stop_reason="<|end|>"), REQUESTED)
    assert (theirs.text, theirs.end_cause) == ("One.", "eos")


@pytest.mark.parametrize(
    "event", [[], 3, "text", {"choices": [3]}, {"choices": 3}, {"choices": [{"text": 3}]}, {"choices": [{"delta": 3}]}]
)
def test_what_is_no_event_is_lost(event: object) -> None:
    with pytest.raises(ResponseLost):
        CompletionStream(REQUESTED).add_event(event)


def test_stream_of_more_text_than_requested_is_lost() -> None:
    stream = CompletionStream(REQUESTED)
    event = {"choices": [{"text": "x" * 1000, "finish_reason": None}]}
    while len(stream.text) <= REQUESTED.max_text_length - 1000:
        stream.add_event(event)
    with pytest.raises(ResponseLost, match="no reply to max_tokens=20"):
        stream.add_event(event)

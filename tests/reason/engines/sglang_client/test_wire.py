"""Tokens, log-probabilities and counters of /generate are believed only where they can be true."""

from __future__ import annotations

from typing import Any

import pytest

from reason.engines.http.errors import ResponseLost
from reason.engines.sglang_client.head_queries import ExpectationQuery, LabelTokensQuery
from reason.engines.sglang_client.wire import GenerateResponse, parse_generate_response, parse_input_logprobs

NO_LOGPROB = [float("nan"), float("inf"), float("-inf"), 0.5, True, "-1", None, [-1], 10**400, -(10**400)]
NO_END: list[object] = [None, 3, [], "bored"]


def parse(body: Any) -> GenerateResponse:
    return parse_generate_response(body, vocab_size=257, max_tokens=4, prefix_length=8)


def reply(tokens: Any = (5, 6), logprobs: Any = (-0.5, -1.0), **meta: Any) -> dict[str, Any]:
    entries = [[value, 0, None] for value in logprobs]
    return {
        "output_ids": list(tokens),
        "meta_info": {"finish_reason": {"type": "length"}, "output_token_logprobs": entries, **meta},
    }


def test_reply_with_believable_counters() -> None:
    parsed = parse(reply(cached_tokens=8, spec_verify_ct=1, spec_num_proposed_drafts=5))
    assert parsed == GenerateResponse((5, 6), (-0.5, -1.0), "length", cached_tokens=8, forwards=2, drafted=5)


@pytest.mark.parametrize("count", [-1, 2.5, True, "7", 10**64, float("nan"), [7], {}])
def test_impossible_counter_is_not_reported(count: object) -> None:
    parsed = parse(reply(cached_tokens=count, spec_verify_ct=count, spec_num_proposed_drafts=count))
    assert (parsed.cached_tokens, parsed.forwards, parsed.drafted) == (0, 2, 0)


@pytest.mark.parametrize("token", [-1, 257, 2.0, 2.5, True, "5", None, [5], float("nan"), 10**64])
def test_token_that_is_none_is_a_lost_response(token: object) -> None:
    with pytest.raises(ResponseLost):
        parse(reply(tokens=[5, token]))


@pytest.mark.parametrize("value", NO_LOGPROB)
def test_logprob_that_is_none_is_a_lost_response(value: object) -> None:
    with pytest.raises(ResponseLost):
        parse(reply(logprobs=[-0.5, value]))
    with pytest.raises(ResponseLost):
        parse_input_logprobs({"meta_info": {"input_token_logprobs": [[-0.5, 5, None], [value, 6, None]]}}, 2)
    meta: dict[str, Any] = {"input_token_ids_logprobs": [None], "output_token_ids_logprobs": [[[-0.5, 3], [value, 4]]]}
    with pytest.raises(ResponseLost):
        LabelTokensQuery((3, 4)).parse_outputs({"meta_info": meta}, 1)
    for chosen, best in ((value, -0.5), (-0.5, value)):
        meta = {"input_token_logprobs": [None, [chosen, 5, None]], "input_top_logprobs": [None, [[best, 5, None]]]}
        with pytest.raises(ResponseLost):
            ExpectationQuery().parse_outputs({"meta_info": meta}, 1)


@pytest.mark.parametrize("rows", [None, [], [[[-0.5, 1, None]]], [[[-0.5, 1, None]], 3], [[[-0.5, 1]], [[0.5, 1]]], {}])
def test_likely_tokens_that_are_missing_or_none_are_a_lost_response(rows: object) -> None:
    body = reply(output_top_logprobs=rows)
    assert parse(body).top_logprobs == ()
    with pytest.raises(ResponseLost):
        parse_generate_response(body, vocab_size=257, max_tokens=4, prefix_length=8, num_top=1)


def test_logprob_above_zero_by_rounding_is_zero() -> None:
    assert parse(reply(logprobs=[1e-6, -1])).logprobs == (0.0, -1.0)


@pytest.mark.parametrize(
    "body",
    [
        *([], None, 3, "text", {}, {"output_ids": []}, reply(finish_reason=None), reply(finish_reason=["stop"])),
        *[reply(finish_reason={"type": wrong}) for wrong in NO_END],
        reply(tokens=[5] * 5, logprobs=[-1] * 5),
        reply(tokens=[5], logprobs=[]),
        reply(tokens="56"),
    ],
)
def test_what_is_no_generation_is_lost(body: Any) -> None:
    with pytest.raises(ResponseLost) as caught:
        parse(body)
    assert len(str(caught.value)) < 300

"""Hostile behaviours of replies that are well-formed and lie: counts, log-probabilities, tokens, texts, ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.hostile_exchange import (
    ANSWERED,
    ANY,
    OPENAI,
    SGLANG,
    Behaviour,
    Exchange,
    build_message,
    distorts,
)
from tests.support.hostile_replies import encode_event

Change = Callable[[Any], Any]
"""Makes another reply of a healthy one."""

_NUMBERS: dict[str, Any] = {
    "text": "12",
    "word": "many",
    "negative": -5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "huge": 1e64,
    "of_65_digits": 10**64,
    "fractional": 2.5,
    "bool": True,
    "list": [1],
    "object": {"a": 1},
    "beyond_max_tokens": 1_000_000,
}
_LOGPROBS: dict[str, Any] = {
    "nan": float("nan"),
    "infinite": float("inf"),
    "minus_infinite": float("-inf"),
    "positive": 3.0,
    "text": "-0.5",
    "word": "low",
    "null": None,
    "list": [-0.5],
    "bool": False,
    "huge": -1e300,
}
_USAGES: dict[str, Any] = {
    "empty": [],
    "list": [1],
    "text": "many",
    "number": 7,
    "bool": True,
    "details_list": {"prompt_tokens_details": [3]},
}
_CHOICES: dict[str, Any] = {
    "empty": [],
    "null": None,
    "text": "One.",
    "number": 5,
    "object": {"0": 1},
    "of_null": [None],
    "of_texts": ["One."],
    "nested": [[{"text": "One."}]],
}
_TEXTS: dict[str, Any] = {"number": 5, "list": ["One."], "object": {"a": "b"}, "bool": True}
_FINISH_REASONS: dict[str, Any] = {
    "null": None,
    "number": 5,
    "unknown": "bored",
    "list": ["stop"],
    "object": {},
    "abort": "abort",
    "with_escapes": "\x1b[2J\nforged: line",
}
_METAS: dict[str, Any] = {"null": None, "list": [], "text": "stop", "number": 5, "empty": {}}
_ENDS: dict[str, Any] = {
    "null": None,
    "text": "stop",
    "unknown": {"type": "bored"},
    "empty": {},
    "list": [],
    "type_list": {"type": ["stop"]},
    "nan": {"type": "stop", "matched": "NaN happened"},
}
_IDS: dict[str, Callable[[list[int]], Any]] = {
    "beyond_vocabulary": lambda ids: [100_000, *ids[1:]],
    "of_65_digits": lambda ids: [10**64, *ids[1:]],
    "negative": lambda ids: [-1, *ids[1:]],
    "nan": lambda ids: [float("nan"), *ids[1:]],
    "fractional": lambda ids: [79.5, *ids[1:]],
    "words": lambda ids: ["One", *ids[1:]],
    "bools": lambda ids: [True] * len(ids),
    "null": lambda ids: None,
    "of_null": lambda ids: [None] * len(ids),
    "text": lambda ids: "One.",
    "object": lambda ids: {"0": 79},
    "too_few": lambda ids: ids[:-3],
}
_SGLANG_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "spec_verify_ct", "spec_num_proposed_drafts")


def replaces(**fields: Any) -> Change:
    return lambda reply: reply | fields


def changes_choice(**fields: Any) -> Change:
    return lambda reply: reply | {"choices": [reply["choices"][0] | fields]}


def drops_from_choice(name: str) -> Change:
    return lambda reply: (
        reply | {"choices": [{key: value for key, value in reply["choices"][0].items() if key != name}]}
    )


def changes_usage(value: Any) -> Change:
    """Returns the change of every count to `value`."""

    def change(reply: Any) -> Any:
        if "meta_info" in reply:
            return reply | {"meta_info": reply["meta_info"] | dict.fromkeys(_SGLANG_COUNTS, value)}
        details = {"prompt_tokens_details": {"cached_tokens": value}}
        return reply | {"usage": {"prompt_tokens": value, "completion_tokens": value, **details}}

    return change


def changes_meta(**fields: Any) -> Change:
    return lambda reply: reply | {"meta_info": reply["meta_info"] | fields}


def changes_logprobs(change: Callable[[list[Any]], Any]) -> Change:
    """Returns the change of the list of log-probabilities."""

    def change_reply(reply: Any) -> Any:
        if "meta_info" in reply:
            return changes_meta(output_token_logprobs=change(reply["meta_info"]["output_token_logprobs"]))(reply)
        told_logprobs = reply["choices"][0]["logprobs"]
        return changes_choice(logprobs=told_logprobs | {"token_logprobs": change(told_logprobs["token_logprobs"])})(
            reply
        )

    return change_reply


def _set_second(value: Any) -> Callable[[list[Any]], list[Any]]:
    """Returns the change of one log-probability, in either shape of an entry."""

    def change(entries: list[Any]) -> list[Any]:
        return [
            ([value, *entry[1:]] if isinstance(entry, list) else value) if i == 1 else entry
            for i, entry in enumerate(entries)
        ]

    return change


def changes_ids(change: Callable[[list[int]], Any]) -> Change:
    return lambda reply: reply | {"output_ids": change(reply["output_ids"])}


async def repeat_keys(exchange: Exchange) -> None:
    """Sends every key twice; which one counts is up to the parser."""
    await exchange.read_request()
    body = json.dumps(exchange.build_reply()).encode()
    twice = (
        b'{"choices": 1, "usage": 2, "output_ids": 3, "meta_info": 4, "data": [], "is_generation": false, ' + body[1:]
    )
    await exchange.send(build_message(encode_event(twice.decode()) if exchange.is_streamed else twice))


def _rows(prefix: str, changes: dict[str, Change], **row: Any) -> tuple[Behaviour, ...]:
    return tuple(Behaviour(f"{prefix}_{name}", distorts(change), **row) for name, change in changes.items())


def _change_all(values: dict[str, Any], change_to: Callable[[Any], Change]) -> dict[str, Change]:
    return {name: change_to(value) for name, value in values.items()}


_WELL_FORMED = (
    *_rows("usage", _change_all(_NUMBERS, changes_usage), alone=ANSWERED),
    *_rows("logprob", _change_all(_LOGPROBS, lambda value: changes_logprobs(_set_second(value))), alone=ANY),
    Behaviour("logprobs_too_few", distorts(changes_logprobs(lambda entries: entries[:-2])), alone=ANY),
    Behaviour("logprobs_too_many", distorts(changes_logprobs(lambda entries: entries * 2)), alone=ANY),
    Behaviour("logprobs_missing", distorts(changes_logprobs(lambda entries: None)), alone=ANY),
    Behaviour("logprobs_object", distorts(changes_logprobs(lambda entries: {"a": 1})), alone=ANY),
    Behaviour("keys_twice", repeat_keys, alone=ANY),
)

_OPENAI_FAULTS: dict[str, Change] = {
    **{f"choices_{name}": replaces(choices=value) for name, value in _CHOICES.items()},
    **{f"text_{name}": changes_choice(text=value) for name, value in _TEXTS.items()},
    **{f"finish_{name}": changes_choice(finish_reason=value) for name, value in _FINISH_REASONS.items()},
    "choices_missing": lambda reply: {"usage": reply["usage"]},
    "finish_missing": drops_from_choice("finish_reason"),
}
_OPENAI_LIES: dict[str, Change] = {
    **{f"usage_is_{name}": replaces(usage=value) for name, value in _USAGES.items()},
    "logprob_tokens_are_numbers": changes_choice(logprobs={"tokens": [1] * 10, "token_logprobs": [-1.0] * 10}),
    "logprobs_of_other_text": changes_choice(logprobs={"tokens": ["x"], "token_logprobs": [-1.0]}),
    "logprobs_text": changes_choice(logprobs="low"),
    "logprobs_chat_wrong": changes_choice(logprobs={"content": [{"token": 1}, 2]}),
}
_OPENAI_OTHER_TEXTS: dict[str, Change] = {
    "choices_1000": lambda reply: reply | {"choices": reply["choices"] * 1000},
    "text_null": changes_choice(text=None),
    "text_missing": drops_from_choice("text"),
    "text_empty": changes_choice(text="", logprobs=None),
    "text_with_lone_surrogate": changes_choice(text="One\ud800."),
    "text_with_escapes": changes_choice(text="\x00\x1b[2J\x07One."),
    "text_of_900_kb": changes_choice(text="a" * 900_000, logprobs=None),
    "stop_reason_object": changes_choice(stop_reason={"a": 1}),
    "stop_reason_of_another_request": changes_choice(stop_reason="Two."),
}
_OPENAI = (
    *(Behaviour(name, distorts(change), dialects=OPENAI) for name, change in _OPENAI_FAULTS.items()),
    *(Behaviour(name, distorts(change), alone=ANY, dialects=OPENAI) for name, change in _OPENAI_LIES.items()),
    *(
        Behaviour(name, distorts(change), alone=ANY, dialects=OPENAI, alters_text=True)
        for name, change in _OPENAI_OTHER_TEXTS.items()
    ),
)

_SGLANG_FAULTS: dict[str, Change] = {
    **{f"ids_{name}": changes_ids(change) for name, change in _IDS.items()},
    **{f"meta_{name}": replaces(meta_info=value) for name, value in _METAS.items()},
    **{f"end_{name}": changes_meta(finish_reason=value) for name, value in _ENDS.items()},
    "meta_missing": lambda reply: {"output_ids": reply["output_ids"]},
    "aborts_unasked": changes_meta(finish_reason={"type": "abort"}),
}
_SGLANG_LIES: dict[str, Change] = {
    "ids_texts": changes_ids(lambda ids: [str(i) for i in ids]),
    "ids_none": lambda reply: changes_meta(output_token_logprobs=[])(reply | {"output_ids": []}),
    "ids_10000": lambda reply: changes_meta(output_token_logprobs=[[-1.0, 97, None]] * 10_000)(
        reply | {"output_ids": [97] * 10_000}
    ),
    "end_matched_object": changes_meta(finish_reason={"type": "stop", "matched": {}}),
}
_SGLANG = (
    *(Behaviour(name, distorts(change), dialects=SGLANG) for name, change in _SGLANG_FAULTS.items()),
    *(
        Behaviour(name, distorts(change), alone=ANY, dialects=SGLANG, alters_text=True)
        for name, change in _SGLANG_LIES.items()
    ),
)

ROWS = (*_WELL_FORMED, *_OPENAI, *_SGLANG)

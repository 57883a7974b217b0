"""Fields of OpenAI's API that this server does not support: their neutral values, and what to do instead.

A field is refused unless its value is neutral, that is, requests nothing. A field that requests something is never
dropped silently.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from pydantic_core import PydanticCustomError

_PENALTY = "a penalty would change what the scorer judges; leave it out"
_CHAT = "it goes with /v1/chat/completions and /v1/responses"

UNSUPPORTED_FIELDS: dict[str, tuple[tuple[object, ...], str]] = {
    "tools": (([],), _CHAT),
    "tool_choice": (("none", "auto"), _CHAT),
    "parallel_tool_calls": ((True, False), _CHAT),
    "functions": (([],), "it is the old form of tools"),
    "function_call": (("none", "auto"), "it is the old form of tool_choice"),
    "response_format": (({"type": "text"},), _CHAT),
    "modalities": ((["text"],), "only text can be had"),
    "audio": ((), "only text can be had"),
    "web_search_options": ((), "this server searches solutions, not the web"),
    "prediction": ((), "the server drafts tokens itself; leave it out"),
    "verbosity": (("medium",), "the model writes as it was trained to"),
    "top_logprobs": ((0,), _CHAT),
    "frequency_penalty": ((0,), _PENALTY),
    "presence_penalty": ((0,), _PENALTY),
    "logit_bias": (({},), "the model's own probabilities are what is searched; leave it out"),
    "echo": ((False,), "the answer holds what was written, not the prompt"),
    "suffix": (("",), "text can be continued, not filled in"),
    "best_of": ((1,), "the width of the search is search.n"),
    "previous_response_id": ((), "this server stores no replies: send the whole conversation as input"),
    "conversation": ((), "this server stores no replies: send the whole conversation as input"),
    "background": ((False,), "a reply comes on the connection of its request"),
    "truncation": (("disabled",), "a conversation that does not fit is an error"),
    "prompt": ((), "this server stores no prompts"),
    "max_tool_calls": ((), "the client calls the tools"),
    "context_management": ((), "the client keeps the conversation"),
    "prompt_cache_options": ((), "prefixes are cached in any case"),
    "store": ((False,), "answers are not stored; the search's tree is kept at x-reason-tree for a while"),
    "service_tier": (("auto", "default"), "there is one tier"),
}


def drop_neutral_fields(data: object, supported: Container[str] = ()) -> object:
    """Returns a body without unsupported fields that have a neutral value; `supported` are those of its endpoint.

    Raises: PydanticCustomError, as pydantic's validators do, naming the first field with another value.

    >>> drop_neutral_fields({"n": 2, "tools": [], "top_logprobs": 0, "echo": None})
    {'n': 2}
    """
    if not isinstance(data, Mapping):
        return data
    for field, value in data.items():
        if field in UNSUPPORTED_FIELDS and field not in supported and value is not None:
            neutral, alternative = UNSUPPORTED_FIELDS[field]
            if not any(type(value) is type(each) and value == each for each in neutral):
                raise PydanticCustomError(
                    "unsupported", "{field} is not supported: {instead}", {"field": field, "instead": alternative}
                )
    return {field: value for field, value in data.items() if field not in UNSUPPORTED_FIELDS or field in supported}

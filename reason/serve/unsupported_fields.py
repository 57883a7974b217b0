"""Fields of OpenAI's API that this server does not support: their neutral values, and what to do instead.

A field is refused unless its value is neutral, that is, requests nothing. A field that requests something is never
dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import PydanticCustomError

_PENALTY = "a penalty would change what the scorer judges; leave it out"
_TOOLS = "this server calls no tools: it answers a question by searching; leave it out"
_LOGPROBS = "log-probabilities are in the search's tree (x-reason-tree), not in the answer; leave it out"

UNSUPPORTED_FIELDS: dict[str, tuple[tuple[object, ...], str]] = {
    "tools": (([],), _TOOLS),
    "tool_choice": (("none", "auto"), _TOOLS),
    "parallel_tool_calls": ((True, False), _TOOLS),
    "functions": (([],), _TOOLS),
    "function_call": (("none", "auto"), _TOOLS),
    "response_format": (({"type": "text"},), "only text can be had"),
    "modalities": ((["text"],), "only text can be had"),
    "audio": ((), "only text can be had"),
    "web_search_options": ((), "this server searches solutions, not the web"),
    "prediction": ((), "the server drafts tokens itself; leave it out"),
    "reasoning_effort": ((), "effort is chosen with model: best-of-4 is little, ets-64 is much"),
    "verbosity": (("medium",), "the model writes as it was trained to"),
    "logprobs": ((False,), _LOGPROBS),
    "top_logprobs": ((0,), _LOGPROBS),
    "frequency_penalty": ((0,), _PENALTY),
    "presence_penalty": ((0,), _PENALTY),
    "logit_bias": (({},), "the model's own probabilities are what is searched; leave it out"),
    "echo": ((False,), "the answer holds what was written, not the prompt"),
    "suffix": (("",), "text can be continued, not filled in"),
    "best_of": ((1,), "the width of the search is search.n"),
    "store": ((False,), "answers are not stored; the search's tree is kept at x-reason-tree for a while"),
    "service_tier": (("auto", "default"), "there is one tier"),
}


def drop_neutral_fields(data: object) -> object:
    """Returns a body without unsupported fields that have a neutral value.

    Raises: PydanticCustomError, as pydantic's validators do, naming the first field with another value.

    >>> drop_neutral_fields({"n": 2, "tools": [], "logprobs": False, "echo": None})
    {'n': 2}
    """
    if not isinstance(data, Mapping):
        return data
    for field, value in data.items():
        if field in UNSUPPORTED_FIELDS and value is not None:
            neutral, alternative = UNSUPPORTED_FIELDS[field]
            if not any(type(value) is type(each) and value == each for each in neutral):
                raise PydanticCustomError(
                    "unsupported", "{field} is not supported: {instead}", {"field": field, "instead": alternative}
                )
    return {field: value for field, value in data.items() if field not in UNSUPPORTED_FIELDS}

"""What a server can do, asked once before the first request, where a search depends on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.core import OversizedRequest
from reason.engines.openai_api.endpoint import Endpoint
from reason.engines.openai_api.wire import Form, says_what_ended, usage_of
from reason.engines.sglang_client.errors import Lost, Passing, Refused

_SAID, _STEP = "So", "So\n\n"
_A_WORD = 2  # tokens that `_SAID` may be


@dataclass(frozen=True)
class Facts:
    """What a server turned out to be.

    tokens      prompt and generation together at most; None if it does not say
    says_ended  whether it tells a stop string from the end of a text
    """

    tokens: int | None
    says_ended: bool

    @classmethod
    def common(cls, facts: Sequence[Facts]) -> Facts:
        """What holds of all.

        >>> Facts.common([Facts(None, True), Facts(99, False)])
        Facts(tokens=99, says_ended=False)
        """
        told = [one.tokens for one in facts if one.tokens is not None]
        return cls(min(told, default=None), all(one.says_ended for one in facts))


async def meet(server: Endpoint, form: Form) -> Facts:
    """Asks for a token where answers are to be gone on with: whether the server takes such requests, and whether it
    says what ended a text. Whole answers need neither.

    Raises: ConnectionError if it does not answer, ValueError if it is not what is needed, in one sentence.
    """
    try:
        tokens = await _limit(server, form.model)
        if form.chat and not form.prefill:
            return Facts(tokens, says_ended=True)
        if form.chat:
            await _require_prefill(server, form)
        asked = {"messages": [{"role": "user", "content": "?"}]} if form.chat else {"prompt": "?"}
        return Facts(tokens, says_what_ended(await server.complete(form.path, _one_token(form, asked))))
    except Passing as fault:
        raise ConnectionError(str(fault)) from fault
    except (Refused, OversizedRequest) as fault:
        remedy = "" if form.chat else "; a server without /completions is asked with engine.api=chat (model=served)"
        raise ValueError(f"{fault}{remedy}") from fault


def _one_token(form: Form, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": form.model, **asked, form.max_tokens_field: 1, **form.extra_body}


async def _limit(server: Endpoint, model: str) -> int | None:
    """The model's window, which vLLM says in its list of models."""
    try:
        listed = await server.ask("GET", "/models", timeout=5.0)
    except (Refused, Lost):  # not every server has a list
        return None
    rows = listed.get("data") if isinstance(listed, Mapping) else None
    found = [row.get("max_model_len") for row in rows or () if isinstance(row, Mapping) and row.get("id") == model]
    return next((limit for limit in found if isinstance(limit, int)), None)


async def _require_prefill(server: Endpoint, form: Form) -> None:
    """Raises: ValueError where the server does not go on with an answer as it is. It is seen from the length of the
    prompt: a word more if the answer is gone on with, the words around two turns more if a new one is begun, and
    nothing more for the blank line if the model's template trims what was said."""
    question = {"role": "user", "content": "?"}
    lengths = []
    for said in (None, _SAID, _STEP):
        asked: dict[str, Any] = {"messages": [question]}
        if said is not None:
            asked["messages"] = [question, {"role": "assistant", "content": said}]
            asked |= {"continue_final_message": True, "add_generation_prompt": False}
        body = await server.complete(form.path, _one_token(form, asked))
        lengths.append(usage_of(body)["prompt_tokens"])
    bare, word, step = lengths
    if bare is None or word is None or step is None:
        raise ValueError(
            f"{server.url} does not count prompts, so that nobody knows whether engine.prefill works there"
        )
    if word - bare > _A_WORD:
        raise ValueError(
            f"{server.url} begins a new answer where it is to go on with one; engine.prefill does not work"
        )
    if step <= word:
        raise ValueError(
            f"{server.url} loses the blank line at the end of a step (its chat template trims answers); "
            "engine.prefill does not work with this model, engine.api=completions does"
        )

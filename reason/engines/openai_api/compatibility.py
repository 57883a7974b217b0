"""Checks, from the settings alone, whether a run can work over text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from reason.config.errors import ConfigError
from reason.engines.base import EngineUse
from reason.engines.openai_api.request_format import RequestFormat
from reason.models.byte_tokenizer import BYTES
from reason.scorers.likelihood import LikelihoodScorer

if TYPE_CHECKING:
    from reason.engines.openai_api.settings import OpenAISettings

_WITH_TOKENIZER = "a model whose tokenizer is here (model=hf model.path=FOLDER)"


def adapt_settings(settings: OpenAISettings, use: EngineUse) -> OpenAISettings:
    """Returns the settings with what is null decided.

    `api` is chat where the server renders the conversation, else completions; `thought_tags` are those of the model;
    `drops_thoughts` where every solution begins in a thought, of which only the server could say that it is over.

    Raises: ConfigError naming the setting.
    """
    key, has_no_tokenizer, raw = use.key, use.checkpoint.source == BYTES, use.prompt_format.raw
    api = settings.api or ("chat" if has_no_tokenizer and raw is None else "completions")
    tags = settings.thought_tags
    if tags is None and use.thinking is not None:
        tags = use.thinking.tags
    begins_answers = api == "chat" and not settings.prefill
    drops_thoughts = settings.drops_thoughts
    if drops_thoughts is None:
        drops_thoughts = begins_answers and use.thinking is not None and use.thinking.opened_by_prompt is True
    adapted = replace(settings, api=api, thought_tags=tags, drops_thoughts=drops_thoughts)
    if settings.think_tokens_field is not None:
        adapted = _send_think_tokens(adapted, use)
    if api == "chat" and (not has_no_tokenizer or raw is not None):
        raise ConfigError(f"{key}.api=chat sends conversations, which the server renders; it goes with model=served")
    if api == "completions" and has_no_tokenizer and raw is None:
        raise ConfigError(f"{key}.api=completions sends text; set model.prompt.raw, or choose {_WITH_TOKENIZER}")
    if settings.prefill and api != "chat":
        raise ConfigError(f"{key}.prefill is for {key}.api=chat; completions continue any text")
    if drops_thoughts and (not begins_answers or tags is None):
        raise ConfigError(
            f"{key}.drops_thoughts is for {key}.api=chat without {key}.prefill, and for a model that thinks "
            "(thinking@model.thinking=PRESET); leave it null"
        )
    if not adapted.continues_text:
        _require_whole_answers(use)
    if settings.logprobs and has_no_tokenizer:
        raise ConfigError(f"{key}.logprobs are of tokens, which model=served does not know; choose {_WITH_TOKENIZER}")
    if isinstance(use.scorer, LikelihoodScorer) and not settings.logprobs:
        set_logprobs = f"{key}.logprobs=true"
        remedy = f"choose {_WITH_TOKENIZER} and {set_logprobs}" if has_no_tokenizer else f"set {set_logprobs}"
        raise ConfigError(
            f"scorer=likelihood needs log-probabilities, which {key}=openai has only where it requests them; {remedy}, "
            "or choose scorer=none or a reward model that reads text (scorer=qwen_prm, skywork_prm, ...)"
        )
    if use.measured_for is not None and not settings.logprobs:
        tokenizer = f"choose {_WITH_TOKENIZER} and " if has_no_tokenizer else ""
        raise ConfigError(
            f"{use.measured_for} reads the log-probabilities of the most likely tokens, which {key}=openai has only "
            f"where it requests them; {tokenizer}set {key}.logprobs=true"
        )
    settings.require_room_for(use)
    if use.sampling is not None:
        request_format = RequestFormat(model="", chat=api == "chat", omit=tuple(settings.omit))
        try:
            request_format.validate_params(use.sampling)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return adapted


def _send_think_tokens(settings: OpenAISettings, use: EngineUse) -> OpenAISettings:
    """Returns the settings with the budget of thoughts in the field that the servers have for it."""
    key, name = use.key, settings.think_tokens_field
    if settings.api != "chat":
        raise ConfigError(f"{key}.think_tokens_field is a field of conversations, and {key}.api is completions")
    if use.thinking is None or use.thinking.think_tokens is None:
        raise ConfigError(f"{key}.think_tokens_field={name} sends model.thinking.think_tokens, which is not set")
    body: dict[str, object] = dict(settings.extra_body)
    inner = body
    *outer, last = str(name).split(".")
    for part in outer:
        fields = inner.get(part, {})
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{key}.extra_body.{part} holds no fields, so {name} has no place in it")
        inner[part] = dict(fields)
        inner = cast("dict[str, object]", inner[part])
    inner[last] = use.thinking.think_tokens
    return replace(settings, extra_body=body)


def _require_whole_answers(use: EngineUse) -> None:
    """Raises ConfigError where a run continues earlier output, which a chat without prefill cannot."""
    key = use.key
    remedies = (
        f"choose {key}.prefill=true if the server can continue an answer (vLLM and SGLang can), or "
        f"{key}.api=completions with {_WITH_TOKENIZER}"
    )
    if use.continued_by is not None:
        raise ConfigError(
            f"{use.continued_by} continues earlier output, and {key}.api=chat begins every answer anew; "
            f"{remedies}, or search=self_consistency or best_of_n"
        )
    if use.prompt_format.answer_start:
        raise ConfigError(f"model.prompt.answer_start begins the answer, and {key}.api=chat cannot; {remedies}")

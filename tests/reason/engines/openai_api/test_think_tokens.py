"""The budget of thoughts goes to servers that end thoughts themselves."""

from __future__ import annotations

import pytest

from decoding.core import SamplingParams
from reason import ConfigError
from reason.config.compose import compose_settings
from reason.engines.openai_api.request_format import JsonBody
from reason.engines.openai_api.settings import OpenAISettings
from reason.settings.validate import validate_settings

CHAT = ("engine=openai", "engine.model=toy", "search=self_consistency", "scorer=none", "question=1+1?")
THINKS = ("thinking@model.thinking=qwen3", "model.thinking.think_tokens=100")


def body_for(*settings: str) -> JsonBody:
    plan = validate_settings(*compose_settings([*CHAT, *settings]))
    assert isinstance(plan.engine.settings, OpenAISettings)
    return dict(plan.engine.settings.request_format.extra_body)


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("thinking_token_budget", {"thinking_token_budget": 100}),
        ("reasoning.max_tokens", {"reasoning": {"max_tokens": 100}}),
    ],
)
def test_budget_is_sent_in_the_field_that_the_server_has_for_it(field: str, sent: JsonBody) -> None:
    assert body_for(*THINKS, f"engine.think_tokens_field={field}") == sent


def test_field_inside_others_leaves_them() -> None:
    settings = (*THINKS, "engine.think_tokens_field=reasoning.max_tokens", "+engine.extra_body.reasoning.effort=low")
    assert body_for(*settings) == {"reasoning": {"effort": "low", "max_tokens": 100}}


def test_body_of_a_request_holds_the_budget() -> None:
    settings = OpenAISettings(urls=["http://host/v1"], model="toy", api="completions", extra_body={"a": {"b": 100}})
    assert settings.request_format.build_body("text", SamplingParams(), 1)["a"] == {"b": 100}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (THINKS, r"model.thinking.think_tokens puts in a text.*engine.think_tokens_field if it takes a budget"),
        (("engine.think_tokens_field=budget",), "sends model.thinking.think_tokens, which is not set"),
        ((*THINKS, "engine.think_tokens_field=a b"), "think_tokens_field must be the name of a field"),
        ((*THINKS, "engine.think_tokens_field=a.b", "+engine.extra_body.a=1"), "extra_body.a holds no fields"),
        (
            (*THINKS, "engine.think_tokens_field=b", "engine.api=completions", "model.prompt.raw='{question}'"),
            "think_tokens_field is a field of conversations",
        ),
        ((*THINKS, "engine.think_tokens_field=b", "model.thinking.waits=1"), "model.thinking.waits puts in a text"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        body_for(*settings)

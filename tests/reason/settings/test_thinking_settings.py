"""Thinking in the yaml of a model: presets, the command line, and what is refused."""

from __future__ import annotations

import pytest

from reason.config.compose import compose_settings, list_options
from reason.config.errors import ConfigError
from reason.engines.openai_api.settings import OpenAISettings
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings

SERVED = ("engine=openai", "search=self_consistency")


def spec_of(*overrides: str) -> SolveSpec:
    return validate_settings(*compose_settings(overrides))


def thinking_of(model: str) -> object:
    return compose_settings([f"model={model}", *(["model.path=x"] if model == "hf" else [])])[0]["model"]["thinking"]


@pytest.mark.parametrize("model", list_options("model"))
def test_every_model_says_how_it_thinks(model: str) -> None:
    thinking = thinking_of(model)
    expected = {"thinker", "deepseek-r1-distill-qwen-1.5b", "qwen3-1.7b", "qwen3-8b", "qwq-32b", "gpt-oss-20b"}
    assert bool(thinking) == (model.removesuffix("-thinking") in expected)


@pytest.mark.parametrize("preset", [name for name in list_options("thinking") if name != "none"])
def test_every_preset_makes_a_format(preset: str) -> None:
    thinking = spec_of(*SERVED, f"thinking@model.thinking={preset}", "model.thinking.interim_answers=true").thinking
    assert thinking is not None
    assert thinking.interim_answers


def test_bundled_model_does_not_think_and_a_preset_is_chosen_on_the_command_line() -> None:
    assert spec_of().thinking is None
    assert spec_of(*SERVED, "thinking@model.thinking=none").thinking is None
    assert spec_of(*SERVED, "thinking@model.thinking=r1", "model.thinking=null").thinking is None


def test_qwen3_thinks_where_its_template_is_told_to() -> None:
    off, on = (compose_settings([f"model={name}"])[0]["model"] for name in ("qwen3-8b", "qwen3-8b-thinking"))
    assert off["thinking"] == on["thinking"]
    assert (off["path"], on["path"]) == ("Qwen/Qwen3-8B",) * 2
    assert (off["prompt"]["options"], on["prompt"]["options"]) == (
        {"enable_thinking": False},
        {"enable_thinking": True},
    )
    assert on["sampling"] == {"max_tokens": 32768, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


def test_tags_reach_the_client_of_a_server_that_sends_thoughts_apart() -> None:
    settings = spec_of(*SERVED, "thinking@model.thinking=qwen3").engine.settings
    assert isinstance(settings, OpenAISettings)
    assert settings.tag_pair == ("<think>", "</think>")
    named = spec_of(*SERVED, "engine.thought_tags=['[THINK]','[/THINK]']").engine.settings
    assert isinstance(named, OpenAISettings)
    assert named.tag_pair == ("[THINK]", "[/THINK]")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["thinking@model.thinking=r2"], "there is no thinking=r2.*choose one of: gpt_oss, none, qwen3, qwq, r1"),
        (
            ["+model.thinking.interim_answers=true"],
            "model.thinking needs a preset first: thinking@model.thinking=PRESET, one of gpt_oss, none, qwen3, qwq, r1",
        ),
        (
            ["thinking@model.thinking=r1", "model.thinking.closing='<think>'"],
            "model.thinking.opening and closing must differ",
        ),
        (
            ["thinking@model.thinking=r1", "model.thinking.opening=''"],
            "model.thinking.opening must be the text of a tag",
        ),
        (["engine=openai", "engine.thought_tags=[a]"], "engine.thought_tags must be two texts"),
        (["engine=openai", "engine.thought_tags=ab"], "engine.thought_tags must be two texts"),
        (["engine=openai", "engine.thought_tags=7"], "engine.thought_tags must be two texts"),
    ],
)
def test_wrong_setting_is_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of("search=self_consistency", *overrides)

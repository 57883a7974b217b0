"""Makes the format of thoughts and the rule that ends them, and checks that the engine can do it."""

from __future__ import annotations

from collections.abc import Mapping

from reason.config.compose import Settings, instantiate, list_options
from reason.config.errors import ConfigError
from reason.engines.spec import EngineSpec
from reason.thinking import ThinkingFormat
from search.probes import EarlyExit


def make_thinking(node: Mapping[str, object] | None) -> ThinkingFormat | None:
    """Returns the format of the model's thoughts; None for the preset `none`."""
    if not node:
        return None
    if not isinstance(node, Mapping) or "_target_" not in node:
        options = ", ".join(list_options("thinking"))
        raise ConfigError(f"model.thinking needs a preset first: thinking@model.thinking=PRESET, one of {options}")
    thinking: ThinkingFormat = instantiate("model.thinking", node)
    return thinking


def validate_thought_limits(thinking: ThinkingFormat, engine: EngineSpec) -> None:
    """Raises ConfigError for limits of thoughts that this engine, which continues no text, cannot follow."""
    if engine.settings.continues_text:
        return
    for knob, value, default in (("think_tokens", thinking.think_tokens, "null"), ("waits", thinking.waits, "0")):
        if value and not (knob == "think_tokens" and engine.settings.ends_thoughts):
            raise ConfigError(
                f"model.thinking.{knob} puts in a text, and this engine begins every answer anew; with "
                "engine=openai choose engine.prefill=true if the server can continue an answer, "
                + ("engine.think_tokens_field if it takes a budget, " if knob == "think_tokens" else "")
                + f"or leave {knob} {default}"
            )


def make_early_exit(
    config: Settings, choices: Mapping[str, str], thinking: ThinkingFormat | None, engine: EngineSpec
) -> EarlyExit | None:
    """Returns the rule that ends thoughts; None for `none`. Raises: ConfigError where the run has no use for it."""
    if not config["early_exit"]:
        return None
    settings = dict(config["early_exit"])
    name = f"early_exit={choices.get('early_exit', settings.get('_target_'))}"
    if thinking is None:
        raise ConfigError(
            f"{name} ends thoughts, and this model writes none; choose early_exit=none, or its format with "
            "thinking@model.thinking=PRESET"
        )
    if settings.get("probe") is None:
        settings["probe"] = thinking.probe
    rule: EarlyExit = instantiate("early_exit", settings)
    if rule.hint is not None and thinking.closing in rule.hint:
        raise ConfigError(
            f"early_exit.hint must leave it to the model to write the closing tag {thinking.closing!r}; "
            f"model.thinking.forced_end holds it, got {rule.hint!r}"
        )
    if not engine.settings.continues_text:
        raise ConfigError(
            f"{name} continues a thought, and this engine begins every answer anew; choose early_exit=none, or with "
            "engine=openai engine.prefill=true if the server can continue an answer"
        )
    if rule.needs_logprobs and not engine.settings.gives_logprobs:
        raise ConfigError(f"{name} reads log-probabilities; set engine.logprobs=true, or choose early_exit=converged")
    if choices.get("router", "off") != "off":
        raise ConfigError(
            f"{name} asks one model for its answer, and router={choices['router']} writes with two; choose router=off"
        )
    return rule

"""Validates what no group has a class for: names of settings, values of the whole run, shorthands."""

from __future__ import annotations

from collections.abc import Mapping

from decoding.validation import MAX_INT, require_choice, require_count, require_positive, require_share, require_text
from reason.config.compose import Settings, as_config_error, compose_settings
from reason.config.errors import ConfigError, unknown_key
from reason.engines import speculation
from reason.scorers.part import PARTS

GROUPS = (
    "search",
    "step",
    "early_exit",
    "scorer",
    "embedder",
    "engine",
    "model",
    "router",
    "small",
    "budget",
    *speculation.GROUPS,
)
SCORING = ("scorer_reads", "scorer_window", "scorer_timeout", "trusted_score")
SETTINGS = {
    *GROUPS,
    "eviction",  # a run of the last release has none
    "allocation",
    "auto",
    "task",
    "question",
    "limit",
    "seed",
    "concurrency",
    *SCORING,
    "resume",
    "plugins",
    "paper",
    "log_to",
}


def validate_run_settings(config: Settings) -> None:
    """Validates that every group is set, that no key is unknown, and the values outside groups. Raises: ConfigError."""
    for key in config.keys() - SETTINGS:
        raise ConfigError(unknown_key(key, SETTINGS))
    for group in GROUPS:
        if config.get(group) is not None and not isinstance(config[group], dict):
            raise ConfigError(f"{group} has settings of its own, as {group}.NAME=VALUE; got {group}={config[group]!r}")
        if not isinstance(config.get(group), dict):
            raise ConfigError(f"{group} is not set; choose {group}=..., it cannot be left out")
    for key in ("seed", "concurrency", "limit", "scorer_timeout"):
        if key not in config:
            raise ConfigError(f"{key} is not set; it cannot be left out")
    with as_config_error():
        require_text("", config)
        require_count("seed", config["seed"], at_most=MAX_INT)
        require_count("concurrency", config["concurrency"], at_least=1)
        require_count("limit", config["limit"], at_least=1, at_most=MAX_INT, or_null=True)
        require_choice("scorer_reads", config.get("scorer_reads", "thought"), PARTS)
        require_count("scorer_window", config.get("scorer_window", 1), at_least=1)
        if config.get("trusted_score") is not None:
            require_share("trusted_score", config["trusted_score"])
        if config["scorer_timeout"] is not None:
            require_positive("scorer_timeout", config["scorer_timeout"])


def refuse_auto(config: Settings) -> None:
    """Raises ConfigError for a `search=auto` that nothing has replaced."""
    if str(config["search"].get("_target_")).endswith(".front.AutoSearch"):
        raise ConfigError("search=auto chooses from settings as they are typed: give them to load(...) or to a command")


def validate_effort(choices: Mapping[str, str]) -> None:
    """Raises ConfigError where `effort=` and `search=` name two searches."""
    effort = choices.get("effort")
    if effort in (None, "None"):  # Hydra writes a group without a choice as the text None
        return
    search = compose_settings([f"effort={effort}"])[1]["search"]
    if choices["search"] != search:
        raise ConfigError(f"effort={effort} is search={search}; leave out search={choices['search']}, or effort")

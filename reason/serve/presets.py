"""The ways to search that are on offer: what `conf/preset` makes of the server's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reason.build import Plan, check
from reason.config.compose import composed, members
from reason.config.errors import ConfigError, unknown_option
from search.strategy import Budget, Strategy

GROUP = "preset"
OWN = ("search", "budget")
"""What a preset may set; everything else is shared by all."""

NOT_SERVED = ("search", "task", "question", "limit", "concurrency", "resume", GROUP)
"""Settings of a run over problems, which a server has not; what searches is a preset's to say."""


@dataclass(frozen=True)
class Preset:
    """A way to search, under the name by which requests ask for it."""

    name: str
    search: str
    strategy: Strategy
    budget: Budget


@dataclass(frozen=True)
class Offer:
    """Every preset, and the plan by which their models, which are the same, are loaded."""

    presets: Mapping[str, Preset]
    plan: Plan


def offer(settings: Sequence[str], names: Sequence[str] | None) -> Offer:
    """The presets called `names` (None: all there are) under these settings. Loads no model.

    Raises: ConfigError naming the preset that cannot be, or the setting.
    """
    for setting in settings:
        key = setting.lstrip("+~").partition("=")[0]
        if key.partition(".")[0].partition("@")[0] in NOT_SERVED:
            raise ConfigError(
                f"{key} is not a setting of the server: presets say how to search (serve.presets, conf/{GROUP}), "
                "and a request may change what they say"
            )
    plans = {name: _plan(settings, name) for name in (members(GROUP) if names is None else names)}
    first = next(iter(plans.values()))
    for name, plan in plans.items():
        for key in sorted((first.config.keys() | plan.config.keys()) - set(OWN)):
            if first.config.get(key) != plan.config.get(key):
                raise ConfigError(
                    f"preset={name} sets {key}, which all presets share; a preset may set search and budget"
                )
    embedder = next((plan.embedder for plan in plans.values() if plan.embedder), None)
    presets = {name: Preset(name, plan.names["search"], plan.strategy, plan.budget) for name, plan in plans.items()}
    return Offer(presets, replace(first, embedder=embedder))


def _plan(settings: Sequence[str], name: str) -> Plan:
    if name not in members(GROUP):
        raise ConfigError(unknown_option(GROUP, name, members(GROUP)))
    config, choices = composed([*settings, f"+{GROUP}={name}"], "serve")
    del config["serve"]
    try:
        return check(config, choices)
    except ConfigError as error:
        raise ConfigError(f"preset={name}: {error} (serve.presets says which are served)") from error

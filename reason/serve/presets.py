"""Presets: searches with settings (`conf/preset`), which requests name as their model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reason.build import SolveSpec, validate_settings
from reason.config.compose import compose_settings, list_options
from reason.config.errors import ConfigError, unknown_option
from search.strategy import Budget, Strategy

GROUP = "preset"
PRESET_GROUPS = ("search", "budget")
"""Groups that a preset may set; all other settings are shared by all presets."""

RUN_SETTINGS = ("search", "task", "question", "limit", "concurrency", "resume", GROUP)
"""Settings of a run over problems, which the server refuses; presets choose the search."""


@dataclass(frozen=True)
class Preset:
    """A search with its settings and budget, under the name that requests use."""

    name: str
    search: str
    strategy: Strategy
    budget: Budget


@dataclass(frozen=True)
class PresetCatalog:
    """All presets of a server, and the settings of the models, which they share."""

    presets: Mapping[str, Preset]
    spec: SolveSpec

    @property
    def lossy_settings(self) -> list[str]:
        """Settings under which text is not distributed as the target model's, such as `router=arbitrage`."""
        return list(self.spec.lossy_settings)


def load_presets(settings: Sequence[str], names: Sequence[str] | None) -> PresetCatalog:
    """Reads the presets called `names` (None: all of `conf/preset`) under these settings. Loads no model.

    Raises: ConfigError naming the preset that is not valid, or the setting.
    """
    for setting in settings:
        key = setting.lstrip("+~").partition("=")[0]
        if key.partition(".")[0].partition("@")[0] in RUN_SETTINGS:
            raise ConfigError(
                f"{key} is not a setting of the server: presets choose the search (serve.presets, conf/{GROUP}), "
                "and a request may change its settings"
            )
    specs = {name: _preset_spec(settings, name) for name in (list_options(GROUP) if names is None else names)}
    first = next(iter(specs.values()))
    for name, spec in specs.items():
        for key in sorted((first.config.keys() | spec.config.keys()) - set(PRESET_GROUPS)):
            if first.config.get(key) != spec.config.get(key):
                raise ConfigError(
                    f"preset={name} sets {key}, which all presets share; a preset may set search and budget"
                )
    embedder = next((spec.embedder for spec in specs.values() if spec.embedder), None)
    presets = {name: Preset(name, spec.names["search"], spec.strategy, spec.budget) for name, spec in specs.items()}
    return PresetCatalog(presets, replace(first, embedder=embedder))


def _preset_spec(settings: Sequence[str], name: str) -> SolveSpec:
    if name not in list_options(GROUP):
        raise ConfigError(unknown_option(GROUP, name, list_options(GROUP)))
    config, choices = compose_settings([*settings, f"+{GROUP}={name}"], "serve")
    del config["serve"]
    try:
        return validate_settings(config, choices)
    except ConfigError as error:
        raise ConfigError(f"preset={name}: {error} (serve.presets lists the presets that are served)") from error

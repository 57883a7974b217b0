"""Presets: searches with settings (`conf/preset`), which requests name as their model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from reason.build import SolveSpec, validate_settings
from reason.config.compose import compose_settings, list_options
from reason.config.errors import ConfigError, unknown_option
from search.strategy import Budget, Strategy

log = logging.getLogger(__name__)

GROUP = "preset"
PRESET_GROUPS = ("search", "budget")
"""Groups that a preset may set; all other settings are shared by all presets."""

RUN_SETTINGS = ("search", "task", "question", "limit", "concurrency", "resume", GROUP)
"""Settings of a run over problems, which the server refuses; presets choose the search."""


EFFORTS: Mapping[str, tuple[str, ...]] = {
    "none": ("preset=single",),
    "minimal": ("preset=single",),
    "low": ("effort=low",),
    "medium": ("effort=medium", "preset=majority-16"),
    "high": ("effort=high", "preset=majority-64"),
    "xhigh": ("effort=max", "preset=majority-64"),
    "max": ("effort=max", "preset=majority-64"),
}
"""The search of each `reasoning_effort`: the first one that these models can run. Votes need no reward model."""


@dataclass(frozen=True)
class Preset:
    """A search with its settings and budget, under the name that requests use."""

    name: str
    search: str
    strategy: Strategy
    budget: Budget


@dataclass(frozen=True)
class PresetCatalog:
    """All presets of a server, the searches of `reasoning_effort`, and the settings of the models, which all share."""

    presets: Mapping[str, Preset]
    spec: SolveSpec
    efforts: Mapping[str, Preset] = field(default_factory=dict)

    @property
    def lossy_settings(self) -> list[str]:
        """Settings under which text is not distributed as the target model's, such as `router=arbitrage`."""
        return list(self.spec.lossy_settings)


def load_presets(settings: Sequence[str], names: Sequence[str] | None) -> PresetCatalog:
    """Reads the presets called `names` under these settings. Loads no model.

    None: all of `conf/preset` that these models can run; the log names the others.

    Raises: ConfigError naming the preset that is not valid, or the setting.
    """
    for setting in settings:
        key = setting.lstrip("+~").partition("=")[0]
        if key.partition(".")[0].partition("@")[0] in RUN_SETTINGS:
            raise ConfigError(
                f"{key} is not a setting of the server: presets choose the search (serve.presets, conf/{GROUP}), "
                "and a request may change its settings"
            )
    specs = _all_specs(settings) if names is None else {name: _preset_spec(settings, name) for name in names}
    first = next(iter(specs.values()))
    for name, spec in specs.items():
        for key in sorted((first.config.keys() | spec.config.keys()) - set(PRESET_GROUPS)):
            if first.config.get(key) != spec.config.get(key):
                raise ConfigError(
                    f"preset={name} sets {key}, which all presets share; a preset may set search and budget"
                )
    embedder = next((spec.embedder for spec in specs.values() if spec.embedder), None)
    presets = {name: _make_preset(name, spec) for name, spec in specs.items()}
    return PresetCatalog(presets, replace(first, embedder=embedder), _load_efforts(settings, embedder is not None))


def _make_preset(name: str, spec: SolveSpec) -> Preset:
    return Preset(name, spec.names["search"], spec.strategy, spec.budget)


def _all_specs(settings: Sequence[str]) -> dict[str, SolveSpec]:
    """Returns the presets that can run. Raises: ConfigError, that of the first preset, if none can."""
    specs, errors = dict[str, SolveSpec](), dict[str, ConfigError]()
    for name in list_options(GROUP):
        try:
            specs[name] = _preset_spec(settings, name)
        except ConfigError as error:
            errors[name] = error
    if not specs:
        raise next(iter(errors.values()))
    if errors:
        log.warning("not served: %s. %s", ", ".join(errors), next(iter(errors.values())))
    return specs


def _load_efforts(settings: Sequence[str], has_embedder: bool) -> dict[str, Preset]:
    """Returns the search of each `reasoning_effort`; none for a value of which these models can run no search."""
    every_choice = {choice for choices in EFFORTS.values() for choice in choices}
    searches = {choice: _find_effort(settings, choice, has_embedder) for choice in every_choice}
    firsts = {name: next(filter(None, map(searches.get, choices)), None) for name, choices in EFFORTS.items()}
    return {name: preset for name, preset in firsts.items() if preset is not None}


def _find_effort(settings: Sequence[str], choice: str, has_embedder: bool) -> Preset | None:
    group, _, name = choice.partition("=")
    try:
        config, choices = compose_settings([*settings, f"+{choice}" if group == GROUP else choice], "serve")
        del config["serve"]
        spec = validate_settings(config, choices)
    except ConfigError:
        return None
    if spec.embedder and not has_embedder:
        return None
    return _make_preset(name if group == GROUP else f"effort-{name}", spec)


def _preset_spec(settings: Sequence[str], name: str) -> SolveSpec:
    if name not in list_options(GROUP):
        raise ConfigError(unknown_option(GROUP, name, list_options(GROUP)))
    config, choices = compose_settings([*settings, f"+{GROUP}={name}"], "serve")
    del config["serve"]
    try:
        return validate_settings(config, choices)
    except ConfigError as error:
        raise ConfigError(f"preset={name}: {error} (serve.presets lists the presets that are served)") from error

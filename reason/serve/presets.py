"""Presets: searches with settings (`conf/preset`), which requests name as their model."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from reason.config.compose import Settings, compose_settings, list_options
from reason.config.errors import ConfigError, unknown_option
from reason.scorers.base import Scorer, StatelessScorer
from reason.scorers.judge import JudgeScorer
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings
from reason.solver import Solver
from search.strategy import Budget, Strategy

log = logging.getLogger(__name__)

GROUP = "preset"
SCORER = "scorer"
PRESET_GROUPS = ("search", "budget", SCORER)
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
    """A search with its settings and budget, under the name that requests use.

    spec             the settings with which it was checked
    has_own_scorer   whether it chooses a scorer in place of the server's; such a scorer loads no model
    """

    name: str
    spec: SolveSpec
    has_own_scorer: bool = False

    @property
    def search(self) -> str:
        """The option of conf/search."""
        return self.spec.names["search"]

    @property
    def strategy(self) -> Strategy:
        return self.spec.strategy

    @property
    def budget(self) -> Budget:
        return self.spec.budget

    def adapt_solver(self, solver: Solver) -> Solver:
        """Returns the server's solver with the scorer of this preset. Raises: ConfigError if its model is unfit."""
        return self.spec.join_solver(solver) if self.has_own_scorer else solver


@dataclass(frozen=True)
class PresetCatalog:
    """All presets of a server, the searches of `reasoning_effort`, and the settings of the models, which all share.

    is_chosen  whether the operator named the presets; then one that cannot run is an error, and else it is left out
    """

    presets: Mapping[str, Preset]
    spec: SolveSpec
    efforts: Mapping[str, Preset] = field(default_factory=dict)
    is_chosen: bool = False

    @property
    def lossy_settings(self) -> list[str]:
        """Settings under which text is not distributed as the target model's, such as `router=arbitrage`."""
        return list(self.spec.lossy_settings)

    def without_unfit(self, solver: Solver) -> PresetCatalog:
        """Returns the presets whose own scorers these loaded models can run; the log names the others.

        Raises: ConfigError if the operator named one that cannot run, or none is left.
        """
        fit, errors = dict[str, Preset](), dict[str, ConfigError]()
        for name, preset in self.presets.items():
            try:
                preset.adapt_solver(solver)
                fit[name] = preset
            except ConfigError as error:
                errors[name] = ConfigError(f"preset={name}: {error}")
        if errors and (self.is_chosen or not fit):
            raise next(iter(errors.values()))
        _log_unserved(errors)
        return replace(self, presets=fit)


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
    reader = PresetReader(settings)
    made = reader.read_all() if names is None else {name: reader.read_preset(name) for name in names}
    shared = next((preset.spec for preset in made.values() if not preset.has_own_scorer), None)
    first = shared or next(iter(made.values())).spec
    for name, preset in made.items():
        own_groups = PRESET_GROUPS if preset.has_own_scorer else PRESET_GROUPS[:-1]
        config = preset.spec.config
        for key in sorted((first.config.keys() | config.keys()) - set(own_groups)):
            if first.config.get(key) != config.get(key):
                raise ConfigError(
                    f"preset={name} sets {key}, which all presets share; a preset may set search, budget and scorer"
                )
    embedder = next((preset.spec.embedder for preset in made.values() if preset.spec.embedder), None)
    efforts = _load_efforts(settings, embedder is not None)
    return PresetCatalog(made, replace(first, embedder=embedder), efforts, is_chosen=names is not None)


class PresetReader:
    """Reads presets under the settings of a server.

    A scorer that a preset chooses is its own: the server's `scorer` and `scorer.*` do not apply to it, so that a preset
    named after its scorer is what its name says.
    """

    def __init__(self, settings: Sequence[str]) -> None:
        self._settings = list(settings)
        self._without_scorer = [each for each in settings if not _sets_scorer(each)]
        self._default_scorer: str | None = None

    def read_all(self) -> dict[str, Preset]:
        """Returns the presets that can run. Raises: ConfigError, that of the first preset, if none can."""
        presets, errors = dict[str, Preset](), dict[str, ConfigError]()
        for name in list_options(GROUP):
            try:
                presets[name] = self.read_preset(name)
            except ConfigError as error:
                errors[name] = error
        if not presets:
            raise next(iter(errors.values()))
        _log_unserved(errors)
        return presets

    def read_preset(self, name: str) -> Preset:
        """Returns one preset. Raises: ConfigError naming it and the setting."""
        if name not in list_options(GROUP):
            raise ConfigError(unknown_option(GROUP, name, list_options(GROUP)))
        config, choices, is_own = self._compose(name)
        del config["serve"]
        try:
            spec = validate_settings(config, choices)
            if getattr(spec.scorer, "reads_gold", False):
                raise ConfigError(
                    "scorer=oracle scores by gold answers, which requests do not have; choose another one"
                )
            if is_own and not _loads_nothing(spec.scorer):
                raise ConfigError(
                    f"scorer={choices[SCORER]} loads a model, and a preset shares those of the server; it may choose "
                    "confidence, judge (of the model that solves), likelihood, function or none"
                )
        except ConfigError as error:
            raise ConfigError(f"preset={name}: {error} (serve.presets lists the presets that are served)") from error
        return Preset(name, spec, is_own)

    def _compose(self, name: str) -> tuple[Settings, dict[str, str], bool]:
        """Returns the settings with a preset, the options, and whether it chooses a scorer of its own."""
        if self._default_scorer is None:
            self._default_scorer = compose_settings(self._without_scorer, "serve")[1][SCORER]
        config, choices = compose_settings([*self._without_scorer, f"+{GROUP}={name}"], "serve")
        if choices[SCORER] != self._default_scorer:
            return config, choices, True
        if len(self._without_scorer) < len(self._settings):
            config, choices = compose_settings([*self._settings, f"+{GROUP}={name}"], "serve")
        return config, choices, False


def _sets_scorer(setting: str) -> bool:
    return setting.lstrip("+~").partition("=")[0].partition(".")[0] == SCORER


def _loads_nothing(scorer: Scorer) -> bool:
    return isinstance(scorer, StatelessScorer) or (isinstance(scorer, JudgeScorer) and scorer.model == "target")


def _log_unserved(errors: Mapping[str, ConfigError]) -> None:
    """Logs the presets that cannot run; those of which the reasons differ in the search alone are one line."""
    names_of = dict[str, list[str]]()
    for name, error in errors.items():
        reason = str(error).removeprefix(f"preset={name}: ")
        names_of.setdefault(re.sub(r"^search=\w+", "the search", reason), []).append(name)
    for reason, names in names_of.items():
        log.warning("not served: %s. %s", ", ".join(names), reason)


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
    return Preset(name if group == GROUP else f"effort-{name}", spec)

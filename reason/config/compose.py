"""Composes settings with Hydra: overrides to plain data, plain data to objects, every error to one sentence."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from hydra.utils import get_object
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from decoding.compiled import explain_absent_numba
from reason.config import plugins
from reason.config.errors import ConfigError, rejected_setting, suggest_name, unknown_key, unknown_option
from reason.config.front import AUTO, choose_overrides
from reason.config.prefix import installed_name
from reason.config.renamed_settings import OURS, is_ours, rename_arguments, rename_overrides, rename_settings

Settings = dict[str, Any]
"""Composed settings: nested dicts and lists of plain values."""

DRAFTS = "speculation"
"""The group whose default needs Numba."""

SMALL_ENGINE = "engine@small"

SECRETS = (("engine", "api_key"), ("small", "api_key"))
"""Settings that stay unresolved, `${oc.env:NAME}`, in what is saved, hashed or shown; `instantiate` resolves them."""


def compose_settings(overrides: Sequence[str], config: str = "solve") -> tuple[Settings, dict[str, str]]:
    """Returns the settings of `conf/{config}.yaml` with these overrides, and the option chosen of each group.

    `search=auto` is replaced by what it chooses (`reason.config.front`), which `settings["auto"]` tells. Where drafts
    cannot be compiled, `speculation=off` replaces the default, and nothing that was typed.

    Raises: ConfigError.
    """
    overrides = rename_overrides(overrides)
    with _hydra_initialized(), as_config_error():
        cfg = compose(config, prepare_overrides(overrides), return_hydra_config=True)
    choices = {str(group): str(name) for group, name in cfg.hydra.runtime.choices.items()}
    for group, name in choices.items():
        if name.startswith("_"):
            raise ConfigError(unknown_option(group, name, list_options(group)))
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    settings = resolve_settings(cfg)
    if drafts_by_default(choices, overrides):
        return compose_settings([*overrides, f"{DRAFTS}=off"], config)
    if choices.get("search") != AUTO:
        return settings, choices
    overrides, choice = choose_overrides(settings, choices, overrides)
    settings, choices = compose_settings(overrides, config)
    return settings | {AUTO: choice}, choices


def drafts_by_default(choices: Mapping[str, str], overrides: Sequence[str]) -> bool:
    """Returns whether tokens would be drafted, though no setting asks for it, on a machine without Numba.

    Numba belongs to an extra; where it is absent the engine says what is slower.
    """
    # not imported: that takes a quarter of a second, which every command would pay
    if explain_absent_numba() is None or choices.get(DRAFTS) != _default_options()[DRAFTS]:
        return False
    return not any(re.match(rf"[+~]*{DRAFTS}[.@=]", override) for override in overrides)


def list_overrides() -> list[str]:
    """Returns the settings of the running command as they were typed: `${oc.env:KEY}` keeps its name, not its value."""
    overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return [str(override) for override in overrides]


def resolve_settings(cfg: object) -> Settings:
    """Returns the config as plain data: interpolations resolved (except `SECRETS`), nothing missing, names of today.

    Raises: ConfigError.
    """
    with as_config_error():
        config = _to_plain(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        unresolved = _to_plain(OmegaConf.to_container(cfg, resolve=False))
    for group, name in SECRETS:
        if isinstance(config.get(group), dict) and name in config[group]:
            config[group][name] = unresolved[group][name]
    return config


def prepare_overrides(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides as Hydra can compose them. Raises: ConfigError as `drop_empty_groups`."""
    return keep_target_options(drop_empty_groups(overrides))


def keep_target_options(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides with the target's own model and drafts, where `engine@small` runs elsewhere.

    Engines that run elsewhere choose both (conf/engine/openai.yaml), which is meant for the target's engine alone.
    """
    place = next((i for i, o in enumerate(overrides) if re.fullmatch(rf"{SMALL_ENGINE}=(?!local$)\w+", o)), None)
    if place is None:
        return list(overrides)
    groups = _default_options().keys() - {SMALL_ENGINE}
    options = [o for o in overrides if o.startswith("+") or o.partition("=")[0] in groups]
    if any("," in option for option in options):  # a sweep: Hydra composes each job by itself
        return list(overrides)
    with _hydra_initialized(), suppress(HydraException):  # composing all overrides raises it again, and explains it
        choices = compose("solve", options, return_hydra_config=True).hydra.runtime.choices
        typed = {option.partition("=")[0] for option in options}
        choices_of_target = [f"{group}={choices[group]}" for group in ("model", DRAFTS) if group not in typed]
        return [*overrides[: place + 1], *choices_of_target, *overrides[place + 1 :]]
    return list(overrides)


def drop_empty_groups(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides without those that choose nothing where conf/solve.yaml does not either, as `effort=null`.

    >>> drop_empty_groups(["effort=null", "search.n=4"])
    ['search.n=4']

    Raises: ConfigError for another group without an option, which Hydra cannot compose.
    """
    empty = [override for override in overrides if override.partition("=")[1:] in (("=", ""), ("=", "null"))]
    if not empty:
        return list(overrides)
    options = _default_options()
    for override in empty:
        group, _, value = override.partition("=")
        if options.get(group) is not None:
            raise ConfigError(unknown_option(group, value, list_options(group.partition("@")[0])))
    return [override for override in overrides if override not in empty or override.partition("=")[0] not in options]


def _default_options() -> dict[str, str | None]:
    """The option of each group in conf/solve.yaml; None where it chooses none."""
    defaults = OmegaConf.create(files("reason.conf").joinpath("solve.yaml").read_text(encoding="utf-8")).defaults
    return {
        str(group): option for entry in defaults if isinstance(entry, DictConfig) for group, option in entry.items()
    }


def list_options(group: str) -> list[str]:
    """Returns the options of a group: ours, and in a command those of --config-dir too."""
    with _hydra_initialized() as hydra:
        return sorted(_selectable(hydra.config_loader().get_group_options(group)))


def load_option(group: str, name: str) -> Settings:
    """Returns one of our yamls as plain data. Raises: ConfigError naming the options."""
    file = files("reason.conf").joinpath(group, f"{name}.yaml")
    if not file.is_file():
        raise ConfigError(unknown_option(group, name, list_options(group)))
    return resolve_settings(OmegaConf.create(file.read_text(encoding="utf-8")))


def _find_aggregation(scorer: str) -> str:
    """Returns the `agg_strategy` of an option of conf/scorer; `last` where it says nothing, or is none of ours."""
    file = files("reason.conf").joinpath("scorer", f"{scorer}.yaml")
    return str(load_option("scorer", scorer).get("agg_strategy", "last")) if file.is_file() else "last"


# for `${scorer_aggregation:NAME}` in a yaml
OmegaConf.register_new_resolver("scorer_aggregation", _find_aggregation, replace=True)


def instantiate(key: str, node: Mapping[str, Any], **more: object) -> Any:
    """Returns the object that the settings at `key` describe, if its class is ours or a plugin's.

    Raises: ConfigError naming the knob.
    """
    check_trusted_targets(key, node)
    with as_config_error(key):
        settings = dict(node)
        target = load_target(settings) if "_target_" in settings else None
        if target is not None and not is_ours(settings.get("_target_")):
            settings = rename_arguments(key, settings, target)
        return hydra_instantiate(_name_installed(settings), _convert_="all", **more)


def load_target(node: Mapping[str, Any]) -> Any:
    """Returns the class that `_target_` names; `check_trusted_targets` comes first. Raises: ConfigError."""
    target = installed_name(node["_target_"])
    try:
        return get_object(target)
    except (ImportError, AttributeError, ValueError) as error:
        module, _, name = target.rpartition(".")
        why = str(error.__cause__ or error).splitlines()[0]
        if module in sys.modules and not hasattr(sys.modules[module], name):
            names = [one for one in dir(sys.modules[module]) if not one.startswith("_")]
            why = f"{module} has no {name}{suggest_name(name, names)}"
        raise ConfigError(f"_target_={node['_target_']} cannot be loaded: {why}") from error


def check_trusted_targets(key: str, node: object) -> None:
    """Raises ConfigError if the settings at `key` name a target that is neither of this project nor of a plugin.

    Hydra would import and call any target: a config file must not run code that the user did not load.
    """
    if isinstance(node, Mapping):
        target = node.get("_target_", OURS[0])
        if not isinstance(target, str) or not (target.startswith(OURS) or plugins.is_trusted(target)):
            packages = ", ".join(f"{package}*" for package in OURS)
            raise ConfigError(f"{key}._target_ must be one of ours ({packages}) or of plugins=[...], got {target!r}")
        for name, value in node.items():
            check_trusted_targets(f"{key}.{name}", value)
    elif isinstance(node, list | tuple):
        for value in node:
            check_trusted_targets(key, value)


@contextmanager
def as_config_error(key: str = "") -> Iterator[None]:
    """Turns what Hydra, OmegaConf and our constructors raise about settings into a ConfigError about `key`."""
    try:
        yield
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        raise ConfigError(explain_error(error, key)) from error


def explain_error(error: BaseException, key: str = "") -> str:
    """Returns one sentence that names the setting."""
    cause, text = error.__cause__, str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return unknown_option(group, name, _selectable(error.options))
    if isinstance(error, MissingMandatoryValue | InterpolationToMissingValueError):
        missing = text.rpartition("mandatory value: ")[2].splitlines()[0]
        return f"{missing if '.' in missing else error.full_key or missing} must be set"
    if isinstance(error, InterpolationResolutionError) and error.full_key:
        return f"{error.full_key}: {text.splitlines()[0].partition('interpolation: ')[2].strip(chr(34)) or text}"
    if isinstance(error, OverrideParseException):
        if "=" not in str(error.override):
            return f'{error.override}: a setting is NAME=VALUE, and a question is question="..." in quotes'
        return f"cannot read the setting {error.override}: {text.splitlines()[0]}"
    if text.startswith("Ambiguous value"):
        return f"{text.splitlines()[0]}; to run one after the other add -m"
    if text.startswith(("Could not override 'task'", "Could not override 'task.")):
        return f"a task is added with +task=NAME (then task.KNOB=...); tasks are: {', '.join(list_options('task'))}"
    if twice := re.match(r"Multiple values for (\w+)\. ", text):
        return f"{twice[1]} is chosen already; write {twice[1]}=NAME, without +"
    no_group = re.match(r"Could not override '(\w+)'\..*No match in the defaults list", text, re.DOTALL)
    if no_group and (options := list_options(no_group[1])):
        return f"{no_group[1]} is added with +{no_group[1]}=NAME; choose one of: {', '.join(options)}"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        parent = cause.parent_node
        siblings = map(str, parent) if isinstance(parent, DictConfig) else ()
        is_top = isinstance(parent, DictConfig) and "." not in cause.full_key
        return unknown_key(cause.full_key, siblings, find_namesakes(cause.full_key, parent) if is_top else ())
    if isinstance(error, InstantiationException) and cause is not None:
        where = text.rpartition("full_key: ")[2].strip() if "full_key: " in text else ""
        return rejected_setting(".".join(part for part in (key, where) if part), cause, _parameters(text))
    if isinstance(error, HydraException | OmegaConfBaseException) or not key:
        return text.splitlines()[0] if text else type(error).__name__
    return rejected_setting(key, error, ())


def find_namesakes(name: str, settings: object) -> list[str]:
    """Returns the settings, two at most, whose last part is this name: those of the search and the model come first.

    >>> find_namesakes("n", {"search": {"n": 4, "_target_": ""}, "seed": 0, "scorer": {"deep": {"n": 1}}})
    ['search.n', 'scorer.deep.n']
    """
    keys: list[str] = []

    def look_below(node: object, prefix: str) -> None:
        if isinstance(node, Mapping | DictConfig) and prefix != "hydra.":
            for key in node:
                if key == name and prefix:
                    keys.append(f"{prefix}{key}")
                # of a config without its interpolations: they may lead nowhere before all is composed
                is_leaf = isinstance(node, DictConfig) and (
                    OmegaConf.is_interpolation(node, key) or OmegaConf.is_missing(node, key)
                )
                if not is_leaf:
                    look_below(node[key], f"{prefix}{key}.")

    look_below(settings, "")
    first = {"search": 0, "model": 1}
    keys.sort(key=lambda key: (key.count("."), first.get(key.partition(".")[0], 2)))
    return keys[:2]


@contextmanager
def _hydra_initialized() -> Iterator[GlobalHydra]:
    """Hydra with its search path: that of the running command, or else our `conf` alone."""
    if GlobalHydra.instance().is_initialized():
        yield GlobalHydra.instance()
    else:
        with initialize_config_module("reason.conf", version_base="1.3"):
            yield GlobalHydra.instance()


def _to_plain(container: object) -> Settings:
    assert isinstance(container, dict)
    return rename_settings({str(key): value for key, value in container.items()})


def _name_installed(node: object) -> object:
    """Settings with the names of our classes as they can be imported here, in a checkout and from a wheel."""
    if isinstance(node, Mapping):
        named = {key: _name_installed(value) for key, value in node.items()}
        target = named.get("_target_")
        return named | {"_target_": installed_name(target)} if isinstance(target, str) else named
    return [_name_installed(value) for value in node] if isinstance(node, list | tuple) else node


def _selectable(options: Iterable[str]) -> list[str]:
    """The options of a group that a command may name; yamls with a leading underscore are only included by others."""
    return [name for name in options if not name.startswith("_")]


def _parameters(message: str) -> list[str]:
    """The parameters of the target that an InstantiationException names."""
    target = message.partition("target '")[2].partition("'")[0]
    return list(inspect.signature(get_object(target)).parameters) if target else []

"""Hydra's door for settings: overrides in, plain data and the objects it describes out, errors as one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from reason.config import plugins
from reason.config.errors import ConfigError, refused, unknown_key, unknown_option

OURS = ("reason.", "search.", "decoding.")
SECRETS = (("engine", "api_key"), ("draft", "api_key"))
"""Settings that stay as they were written, `${oc.env:NAME}`: what is saved, told apart by a digest or shown has not got
them. `make` looks them up."""


def composed(overrides: Sequence[str], config: str = "solve") -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of `conf/{config}.yaml` with these overrides, and which member of each group was chosen.

    Raises: ConfigError.
    """
    with _searching(), complaints():
        cfg = compose(config, list(overrides), return_hydra_config=True)
    choices = {str(group): str(name) for group, name in cfg.hydra.runtime.choices.items()}
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    return resolved(cfg), choices


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The config as plain data, interpolations resolved (but of `SECRETS`), nothing missing. Raises: ConfigError."""
    with complaints():
        config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(config, dict)
    assert isinstance(written, dict)
    for group, name in SECRETS:
        if isinstance(config.get(group), dict) and name in config[group]:
            config[group][name] = written[group][name]
    return {str(key): value for key, value in config.items()}


def members(group: str) -> list[str]:
    """The names one may choose from in a group: ours, and in a command those of --config-dir too."""
    with _searching() as hydra:
        return sorted(hydra.config_loader().get_group_options(group))


def member(group: str, name: str) -> dict[str, Any]:
    """One of our yamls as plain data. Raises: ConfigError naming the members."""
    file = files("conf").joinpath(group, f"{name}.yaml")
    if not file.is_file():
        raise ConfigError(unknown_option(group, name, members(group)))
    cfg = OmegaConf.create(file.read_text(encoding="utf-8"))
    assert isinstance(cfg, DictConfig)
    return resolved(cfg)


def make(key: str, node: Mapping[str, Any], **more: Any) -> Any:
    """The object the settings at `key` describe, if it is ours or a plugin's. Raises: ConfigError naming the knob."""
    only_ours(key, node)
    with complaints(key):
        return instantiate(dict(node), _convert_="all", **more)


def only_ours(key: str, node: Any) -> None:
    """Raises ConfigError if the settings at `key` name a target that is neither of this project nor of a plugin."""
    if isinstance(node, Mapping):
        target = node.get("_target_", OURS[0])
        if not isinstance(target, str) or not (target.startswith(OURS) or plugins.trusted(target)):
            wanted = ", ".join(f"{home}*" for home in OURS)
            raise ConfigError(f"{key}._target_ must be one of ours ({wanted}) or of plugins=[...], got {target!r}")
        for name, value in node.items():
            only_ours(f"{key}.{name}", value)
    elif isinstance(node, list | tuple):
        for value in node:
            only_ours(key, value)


@contextmanager
def _searching() -> Iterator[GlobalHydra]:
    """Hydra with the folders where it looks: those of the command that runs, or else ours alone."""
    if GlobalHydra.instance().is_initialized():
        yield GlobalHydra.instance()
    else:
        with initialize_config_module("conf", version_base="1.3"):
            yield GlobalHydra.instance()


@contextmanager
def complaints(key: str = "") -> Iterator[None]:
    """Turn what Hydra, OmegaConf and our constructors raise about settings into a ConfigError about `key`."""
    try:
        yield
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        raise ConfigError(explain(error, key)) from error


def explain(error: BaseException, key: str = "") -> str:
    """One sentence for the person who made the setting."""
    cause, text = error.__cause__, str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return unknown_option(group, name, error.options)
    if isinstance(error, MissingMandatoryValue | InterpolationToMissingValueError):
        named = text.rpartition("mandatory value: ")[2].splitlines()[0]
        return f"{named if '.' in named else error.full_key or named} must be set"
    if isinstance(error, InterpolationResolutionError) and error.full_key:
        return f"{error.full_key}: {text.splitlines()[0].partition('interpolation: ')[2].strip(chr(34)) or text}"
    if isinstance(error, OverrideParseException):
        return f"cannot read the setting {error.override}: {text.splitlines()[0]}"
    if text.startswith("Ambiguous value"):
        return f"{text.splitlines()[0]}; to run one after the other add -m"
    if text.startswith(("Could not override 'task'", "Could not override 'task.")):
        return f"a task is added with +task=NAME (then task.KNOB=...); tasks are: {', '.join(members('task'))}"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        parent = cause.parent_node
        return unknown_key(cause.full_key, map(str, parent) if isinstance(parent, DictConfig) else ())
    if isinstance(error, InstantiationException) and cause is not None:
        where = text.rpartition("full_key: ")[2].strip() if "full_key: " in text else ""
        return refused(".".join(part for part in (key, where) if part), cause, _fields(text))
    if isinstance(error, HydraException | OmegaConfBaseException) or not key:
        return text.splitlines()[0] if text else type(error).__name__
    return refused(key, error, ())


def _fields(message: str) -> list[str]:
    """The parameters of the target that an InstantiationException names."""
    target = message.partition("target '")[2].partition("'")[0]
    return list(inspect.signature(get_object(target)).parameters) if target else []

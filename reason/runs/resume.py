"""Saves the settings of a run beside its results and compares them with those of a run that resumes it.

Rows hold a hash of the settings that they were made with, and `run.json` holds the settings with their hashes. A run is
resumed only where all of them agree: rows of two configurations never mix, also where `run.json` was edited.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from reason.config.errors import ConfigError
from reason.config.renamed_settings import rename_settings
from reason.runs.json_files import format_json, parse_json
from reason.runs.output_folder import OutputError, OutputFolder
from reason.runs.result import ProblemResult

FILE = "run.json"
NON_SEMANTIC = ("resume", "limit", "concurrency", "plugins", "paper", "log_to", "auto")
"""Settings that cannot change a row and may differ when a run is resumed; `_target_`s of plug-ins must not."""

_NOT_COMPARED = (
    "config",
    "settings",
    "versions",
)  # of a row's metadata: the hash is compared first, versions may differ


def hash_settings(config: Mapping[str, object]) -> str:
    """Returns a hash of the settings that can change a row: equal hashes mean that rows may be compared.

    >>> hash_settings({"seed": 0, "limit": 1}) == hash_settings({"seed": 0, "limit": 2}) != hash_settings({"seed": 1})
    True
    """
    return _hash_value({key: value for key, value in config.items() if key not in NON_SEMANTIC})


def save_settings(
    folder: Path,
    *,
    config: Mapping[str, object],
    choices: Mapping[str, str],
    about: Mapping[str, object],
    command: str | None = None,
) -> None:
    """Writes `run.json`: the resolved settings, the chosen option of each group, and the run's metadata (`about`).

    `started` is the date, in UTC, and `command` what was typed: for readers, and not compared.
    `hash` is that of all settings and `hashes` has one per setting: `load_settings` notices an edit and names it.

    Raises: ConfigError if the folder already holds a run, since its rows may come from other settings; OutputError.
    """
    hashes = {"hash": _hash_saved(config), "hashes": _hash_each(config)}
    origin = {"started": datetime.now(UTC).isoformat(" ", "minutes").replace("+00:00", " UTC"), "command": command}
    run = {"config": dict(config), "choices": dict(choices), "about": dict(about), **origin, **hashes}
    if not OutputFolder(folder).create(FILE, format_json(run)):
        raise _used_folder(folder)


def require_new_folder(folder: Path) -> None:
    """Raises ConfigError where the folder holds a run."""
    if (folder / FILE).exists():
        raise _used_folder(folder)


def _used_folder(folder: Path) -> ConfigError:
    return ConfigError(f"{folder} holds a run already; finish it with resume={folder}, or give another folder")


def load_origin(folder: Path) -> dict[str, str]:
    """Returns when the run in `folder` began (`started`) and its `command`, as far as they are known.

    Raises: OutputError, also where `run.json` is broken.
    """
    data = OutputFolder(folder).read(FILE)
    try:
        saved = None if data is None else parse_json(data)
    except ValueError as error:
        raise OutputError(f"{folder / FILE}: {error}") from error
    if not isinstance(saved, dict):
        return {}
    return {name: saved[name] for name in ("started", "command") if isinstance(saved.get(name), str)}


class SavedRun(NamedTuple):
    """A `run.json`: settings in the names of today, the chosen option of each group, and the run's metadata."""

    config: dict[str, Any]
    choices: dict[str, str]
    about: dict[str, Any]


def load_settings(folder: Path) -> SavedRun:
    """Returns the settings of the run in `folder`.

    Raises: ConfigError if there are none, if they cannot be read, or if they were changed after the run had begun.
    """
    try:
        data = OutputFolder(folder).read(FILE) if folder.is_dir() else None
        if data is None:
            raise ConfigError(f"{folder}: there is no {FILE} in it; give the output folder of a run")
        run = parse_json(data)
        _require_parts(run)
    except (OutputError, ValueError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        hint = "restore it, or start the run anew in another folder"
        raise ConfigError(f"{folder}: cannot read {FILE} ({error}); {hint}") from error
    changed = _changed_since_saved(run)
    if changed:
        hint = "rows of two configurations must not mix: restore it, or start a new run in another folder"
        raise ConfigError(f"{folder}: {FILE} was changed after the run had begun ({changed}); {hint}")
    return SavedRun(rename_settings(run["config"], warn=False), run["choices"], run["about"])


@contextmanager
def settings_of_run(folder: Path) -> Iterator[None]:
    """Turns what code raises on settings of the wrong shape into a ConfigError: they come from a file.

    Settings of the command line have their shape from Hydra.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        hint = "start the run anew in another folder"
        raise ConfigError(f"{folder}: the settings in {FILE} do not fit this release ({lacks}); {hint}") from error


def require_rows_of_run(results: Iterable[ProblemResult], about: Mapping[str, object], folder: Path) -> None:
    """Raises ConfigError unless every row was made with the settings of the run in `folder`, whose metadata is `about`.

    The message names what the row says of its settings and `about` says otherwise.
    """
    for row in results:
        if row.metadata.get("config") == about.get("config") is not None:
            continue
        differences = [
            f"{key} {json.dumps(row.metadata.get(key))} in the row, {json.dumps(about.get(key))} in {FILE}"
            for key in sorted(row.metadata.keys() | about.keys())
            if key not in _NOT_COMPARED and row.metadata.get(key) != about.get(key)
        ]
        which = "; ".join(differences) or "a setting that rows do not name"
        if "config" not in row.metadata:
            which = "it does not say with which settings it was made"
        hint = "delete its line, or start a new run in another folder"
        raise ConfigError(f"{folder}: the row of problem {row.id} is not of this run ({which}); {hint}")


def require_same_settings(
    then: Mapping[str, object], now: Mapping[str, object], given: Sequence[str] | None = None
) -> None:
    """Raises ConfigError naming every difference that could change a row; with `given`, of these settings alone.

    >>> require_same_settings({"search": {"n": 4}, "limit": 2}, {"search": {"n": 8}, "limit": None})
    Traceback (most recent call last):
    reason.config.errors.ConfigError: these settings are not those of the run to resume: search.n was 4, now 8
    """
    old, new = flatten_settings(then), flatten_settings(now)
    changed = [
        f"{key} was {_format_setting(old, key)}, now {_format_setting(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if given is None or any(f"{key}.".startswith(f"{name}.") for name in given)
        if key.split(".")[0] not in NON_SEMANTIC and _format_setting(old, key) != _format_setting(new, key)
    ]
    if changed:
        raise ConfigError("these settings are not those of the run to resume: " + "; ".join(changed))


def find_keys(given: Sequence[str], *configs: Mapping[str, object]) -> list[str] | None:
    """Returns the settings that were typed under the names that they have in a config; None where one has none there.

    `thinking@model.thinking` is `model.thinking`; `effort` or a preset chooses settings of several groups.
    """
    names = [name.partition("@")[2] or name for name in given]
    known = [key for config in configs for key in flatten_settings(config)]
    is_known = (any(f"{key}.".startswith(f"{name}.") for key in known) for name in names if name not in NON_SEMANTIC)
    return names if all(is_known) else None


def flatten_settings(node: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flattens nested settings to one level of dotted names.

    >>> flatten_settings({"search": {"n": 4}, "seed": 0})
    {'search.n': 4, 'seed': 0}
    """
    settings: dict[str, object] = {}
    for key, value in node.items():
        settings |= (
            flatten_settings(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
        )
    return settings


def _format_setting(flat: Mapping[str, object], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "not set"


def _require_parts(run: object) -> None:
    """Raises TypeError unless `run` has the parts of a `run.json`."""
    if not isinstance(run, dict):
        raise TypeError("it is not an object")
    for part in ("config", "choices", "about"):
        if not isinstance(run.get(part), dict):
            raise TypeError(f"{part} must be an object, got {json.dumps(run.get(part))[:60]}")
    for group, option in run["choices"].items():
        if not isinstance(option, str | None):
            raise TypeError(f"choices.{group} must be text or null, got {json.dumps(option)[:60]}")


def _changed_since_saved(run: Mapping[str, Any]) -> str:
    """Names the settings that are not as they were saved; empty where all are.

    Runs of the last release have one hash, in `about`, and so there is nothing to name.
    """
    config, hashes = run["config"], run.get("hashes", {})
    if run.get("hash", run["about"].get("config")) == _hash_saved(config):
        return ""
    now = _hash_each(config)
    then = hashes if isinstance(hashes, dict) and hashes else now
    flat = flatten_settings(config)
    names = sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key))
    return (
        ", ".join(f"{key} is now {_format_setting(flat, key)}" for key in names) or "its settings do not fit its hash"
    )


def _hash_saved(config: Mapping[str, object]) -> str:
    return hash_settings(json.loads(json.dumps(config)))  # as the file gives them back: keys are text there


def _hash_each(config: Mapping[str, object]) -> dict[str, str]:
    flat = flatten_settings({key: value for key, value in config.items() if key not in NON_SEMANTIC})
    return {key: _hash_value(value) for key, value in flat.items()}


def _hash_value(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]

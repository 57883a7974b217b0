"""Translates settings of the last release: renamed knobs and moved classes still work, each with one warning.

`renamed_settings.txt` lists the knobs and `renamed_targets.txt` the classes, one `old new` pair of dotted prefixes per
line.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from reason.config.prefix import canonical_name

log = logging.getLogger(__name__)

OURS = ("reason.", "search.", "decoding.")
"""Packages whose classes settings may name."""

SAME_CLASSES = {"engine.": ("small.",), "speculation.source.": ("speculation.source.sources.*.",)}
"""Other places whose settings are those of the same classes: a pair for the first holds for them too."""

_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=@\s]+)(?P<package>@[^=\s]*)?(?P<value>=.*)?", re.DOTALL)


@cache
def renamed_settings() -> dict[str, str]:
    """Returns the dotted prefixes of the last release with those of today."""
    pairs = _read_pairs("renamed_settings.txt")
    for old, new in list(pairs.items()):
        for place, others in SAME_CLASSES.items():
            if old.startswith(place) and new.startswith(place):
                pairs |= {other + old[len(place) :]: other + new[len(place) :] for other in others}
    return pairs


@cache
def moved_targets() -> dict[str, str]:
    """Returns the prefixes of `_target_` of the last release with those of today: folders and classes."""
    return _read_pairs("renamed_targets.txt")


def rename_overrides(overrides: Sequence[str]) -> list[str]:
    """Rewrites the command line's settings to the names of today; options such as `--config-dir` stay as they are.

    >>> rename_overrides(["search.n=4", "-m"])
    ['search.n=4', '-m']
    """
    return [override if override.startswith("-") else _rename_override(override) for override in overrides]


def rename_settings(settings: Mapping[str, Any], prefix: str = "", *, warn: bool = True) -> dict[str, Any]:
    """Rewrites composed settings, or those at `prefix`, to the names and classes of today.

    Where both names of a knob are set the old one counts: it comes from a file of the user, the new one from ours.
    Settings of classes that are not ours keep their names; see `rename_arguments`. Without `warn` for settings that a
    run of the last release saved: the user typed none of them.
    """
    renamed: dict[str, Any] = {}
    old_names: dict[str, object] = {}
    foreign = not is_ours(settings.get("_target_"))
    for name, value in settings.items():
        key = f"{prefix}{name}"
        new = key if foreign else current_name(key)
        parent, _, new_name = new.rpartition(".")
        if new == key or parent != key.rpartition(".")[0]:
            renamed[name] = _rename_value(name, value, key, warn)
        else:
            if warn:
                warn_renamed(key, new)
            old_names[new_name] = _rename_value(new_name, value, new, warn)
    for name, value in old_names.items():
        renamed[name] = _merged(renamed.get(name), value)
    return renamed


def rename_arguments(prefix: str, settings: Mapping[str, Any], target: Callable[..., object]) -> dict[str, Any]:
    """Rewrites the settings at `prefix` of a user's class that takes a knob under its name of today only."""
    accepted = inspect.signature(target).parameters
    renamed = dict(settings)
    for name in settings:
        new = current_name(f"{prefix}.{name}")
        new_name = new.rpartition(".")[2]
        if name not in accepted and new_name in accepted and new_name not in settings:
            warn_renamed(f"{prefix}.{name}", new)
            renamed[new_name] = renamed.pop(name)
    return renamed


def current_name(key: str) -> str:
    """Returns the dotted name of today for a setting, the same where it was not renamed."""
    pairs = renamed_settings()
    for _ in pairs:  # a knob may have been renamed together with its group
        parts = key.split(".")
        prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        old = next((prefix for prefix in prefixes if _any_index(prefix) in pairs), None)
        if old is None:
            break
        new = pairs[_any_index(old)]
        index = re.search(r"sources\.(\d+)\.", old)
        key = (new.replace("*", index[1]) if index else new) + key[len(old) :]
    return key


def current_target(target: str) -> str:
    """Returns the path of today for a class of the last release.

    >>> current_target("search.ets.Ets")
    'search.strategies.ets.Ets'
    """
    moved = moved_targets()
    old = max((prefix for prefix in moved if target.startswith(prefix)), key=len, default=None)
    return target if old is None else moved[old] + target[len(old) :]


def is_ours(target: object) -> bool:
    """Returns whether a `_target_` names a class of this project; settings without one are ours too."""
    return target is None or str(target).startswith(OURS)


@cache
def warn_renamed(old: str, new: str) -> None:
    """Warns once per process and name."""
    log.warning("%s is now called %s; the old name works in this release only", old, new)


def _read_pairs(file: str) -> dict[str, str]:
    lines = files("reason.config").joinpath(file).read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if line.strip() and not line.startswith("#"))


def _rename_override(override: str) -> str:
    match = _OVERRIDE.fullmatch(override)
    if match is None or (match["value"] is None and match["sign"] != "~"):
        return override
    key = match["key"]
    new = current_name(key)
    if new != key:
        warn_renamed(key, new)
    packages = []
    for package in (match["package"] or "").removeprefix("@").split(":"):
        packages.append(current_name(package) if package else "")
        if packages[-1] != package:
            warn_renamed(f"{key}@{package}", f"{new}@{packages[-1]}")
    place = f"@{':'.join(packages)}" if match["package"] else ""
    return f"{match['sign'] or ''}{new}{place}{match['value'] or ''}"


def _rename_value(name: str, value: object, key: str, warn: bool) -> object:
    if isinstance(value, Mapping):
        return rename_settings(value, f"{key}.", warn=warn)
    if isinstance(value, list):
        return [_rename_value("", entry, f"{key}.{index}", warn) for index, entry in enumerate(value)]
    if name == "_target_" and isinstance(value, str):
        name_today = canonical_name(value)
        new = current_target(name_today)
        if new != name_today and warn:
            warn_renamed(value, new)
        return new
    return value


def _merged(below: object, above: object) -> object:
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
    return above


def _any_index(key: str) -> str:
    return re.sub(r"\.sources\.\d+(?=\.|$)", ".sources.*", key)

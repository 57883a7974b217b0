"""Saves the settings of a run beside its results and compares them with those of a run that resumes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reason.config.errors import ConfigError
from reason.config.renamed_settings import rename_settings
from reason.runs.json_files import write_json

FILE = "run.json"
NON_SEMANTIC = ("resume", "limit", "concurrency", "plugins")
"""Settings that cannot change a row and may differ when a run is resumed; `_target_`s of plug-ins must not."""


def save_settings(
    folder: Path, *, config: Mapping[str, object], choices: Mapping[str, str], about: Mapping[str, object]
) -> None:
    """Writes `run.json`: the resolved settings, the chosen option of each group, and the run's metadata (`about`).

    Raises: ConfigError if the folder already holds a run, since its rows may come from other settings.
    """
    if (folder / FILE).exists():
        raise ConfigError(f"{folder} holds a run already; finish it with resume={folder}, or give another folder")
    write_json(folder / FILE, {"config": dict(config), "choices": dict(choices), "about": dict(about)})


def load_settings(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns settings and choices of the run in `folder`. Raises: ConfigError if there is none."""
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return rename_settings(data["config"], warn=False), dict(data["choices"])
    except FileNotFoundError:
        raise ConfigError(f"resume={folder}: there is no {FILE} in it; give the output folder of a run") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(f"resume={folder}: cannot read {FILE} ({error})") from None


def require_same_settings(then: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raises ConfigError naming every difference that could change a row.

    >>> require_same_settings({"search": {"n": 4}, "limit": 2}, {"search": {"n": 8}, "limit": None})
    Traceback (most recent call last):
    reason.config.errors.ConfigError: these settings are not those of the run to resume: search.n was 4, now 8
    """
    old, new = flatten_settings(then), flatten_settings(now)
    changed = [
        f"{key} was {_format_setting(old, key)}, now {_format_setting(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if key.split(".")[0] not in NON_SEMANTIC and _format_setting(old, key) != _format_setting(new, key)
    ]
    if changed:
        raise ConfigError("these settings are not those of the run to resume: " + "; ".join(changed))


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

"""The settings of a run, saved beside its results, and whether another run may go on with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reason.config.errors import ConfigError
from reason.runs.result_file import write_json

FILE = "run.json"
HARMLESS = ("resume", "limit", "concurrency", "plugins")
"""Settings that cannot change a row, so that a run may be finished with others. Of code of one's own, it is the
`_target_` that must stay the same."""


def save(folder: Path, *, config: Mapping[str, Any], choices: Mapping[str, str], about: Mapping[str, Any]) -> None:
    """Write `run.json`: the resolved settings, what was chosen of each group, and what it was run with.

    Raises: ConfigError if the folder already holds a run, whose rows these settings might not have given.
    """
    if (folder / FILE).exists():
        raise ConfigError(f"{folder} holds a run already; finish it with resume={folder}, or give another folder")
    write_json(folder / FILE, {"config": dict(config), "choices": dict(choices), "about": dict(about)})


def saved(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings and choices of the run in `folder`. Raises: ConfigError if there is none."""
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return dict(data["config"]), dict(data["choices"])
    except FileNotFoundError:
        raise ConfigError(f"resume={folder}: there is no {FILE} in it; give the output folder of a run") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(f"resume={folder}: cannot read {FILE} ({error})") from None


def require_same(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ConfigError naming every difference that could change a row.

    >>> require_same({"search": {"n": 4}, "limit": 2}, {"search": {"n": 8}, "limit": None})
    Traceback (most recent call last):
    reason.config.errors.ConfigError: these settings are not those of the run to resume: search.n was 4, now 8
    """
    old, new = flat(then), flat(now)
    changed = [
        f"{key} was {_shown(old, key)}, now {_shown(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if key.split(".")[0] not in HARMLESS and _shown(old, key) != _shown(new, key)
    ]
    if changed:
        raise ConfigError("these settings are not those of the run to resume: " + "; ".join(changed))


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted names.

    >>> flat({"search": {"n": 4}, "seed": 0})
    {'search.n': 4, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for key, value in node.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "not set"

"""Find the runs below some folders and say in numbers what each gave: finished, half done or broken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reason.runs.metrics import Difference, paired_bootstrap
from reason.runs.result import spent_of
from reason.runs.result_file import REFUSED, Row
from reason.runs.resume import FILE, flat, saved
from reason.runs.run import INDEX, PAGES

Floats = npt.NDArray[np.float64]

COSTS = {
    "tokens": "tokens written per problem",
    "forwards": "target forward passes per problem, summed over branches",
    "seconds": "seconds per problem, under way together with others",
    "kv": "KV tokens kept per decision (search.kv)",
}
"""What a run's accuracy is drawn against, all as means per problem."""


@dataclass(frozen=True)
class Measured:
    """A run in numbers. `accuracy` of the chosen answers with its 95 % interval, None where nothing can be graded."""

    accuracy: Difference | None
    costs: Mapping[str, float]
    problems: int
    failed: int


@dataclass(frozen=True)
class Found:
    """A run: its folder, what tells it from the others (`label`), and its numbers or why there are none (`broken`).

    `about` are the names of task, model, search and the rest; `state` is done, interrupted, unfinished or refused;
    `page` is what to look at.
    """

    folder: Path
    label: str
    about: Mapping[str, Any]
    state: str
    measured: Measured | None
    broken: str | None
    page: Path | None


def find_runs(folders: Iterable[Path]) -> list[Found]:
    """Every run at or below the folders, in the order of their paths; changes nothing on disk.

    Raises: ValueError for a folder that does not exist, or if there is no run at all.
    """
    homes: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder}: there is no such folder")
        homes += sorted(file.parent for file in (*folder.rglob(FILE), *folder.rglob(REFUSED)))
    if not homes:
        raise ValueError(f"no run (a folder with {FILE}) in {', '.join(map(str, folders))}")
    unique = list(dict.fromkeys(home.resolve() for home in homes))
    names = labels([_settings(home) for home in unique])
    return [_found(home, name) for home, name in zip(unique, names, strict=True)]


def labels(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> list[str]:
    """For each (settings, choices) what is not the same in all: first the members of groups, then single settings that
    differ between runs of one member.

    >>> labels([({"search": {"n": 4}}, {"search": "ets"}), ({"search": {"n": 8}}, {"search": "ets"})])
    ['search.n=4', 'search.n=8']
    """
    choices = [{key: value for key, value in chosen.items() if not key.startswith("hydra")} for _, chosen in runs]
    settings = [flat(config) for config, _ in runs]
    groups = sorted({key for chosen in choices for key in chosen if len({c[key] for c in choices if key in c}) > 1})
    named = []
    for own, chosen in zip(settings, choices, strict=True):
        parts = [f"{group}={chosen[group]}" for group in groups if group in chosen]
        for key, value in own.items():
            group = key.split(".")[0]
            peers = [s for s, c in zip(settings, choices, strict=True) if c.get(group) == chosen.get(group)]
            if any(peer.get(key, value) != value for peer in peers):
                parts.append(f"{key}={value}")
        named.append(" ".join(parts) or "run")
    return named


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the (cost, accuracy) pairs that no other beats: none is as accurate for less. By rising cost.

    >>> pareto([(2.0, 0.5), (1.0, 0.4), (3.0, 0.5), (4.0, 0.9)])
    [1, 0, 3]
    """
    best, front = -1.0, []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[place][1] > best:
            best = points[place][1]
            front.append(place)
    return front


def _settings(home: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    try:
        return saved(home)
    except ValueError:
        return {}, {}


def _found(home: Path, label: str) -> Found:
    if (home / REFUSED).exists() and not (home / FILE).exists():
        told = json.loads((home / REFUSED).read_text(encoding="utf-8"))
        return Found(home, " ".join(told["overrides"]), {}, "refused", None, told["error"], None)
    about: Mapping[str, Any] = {}
    state, measured, broken = "unfinished", None, None
    try:
        about = json.loads((home / FILE).read_text(encoding="utf-8"))["about"]
        summary = home / "summary.json"
        if summary.exists():
            state = json.loads(summary.read_text(encoding="utf-8"))["stopped"]
        rows = list(_rows(home / "results.jsonl"))
        if rows:
            measured = measure(rows)
        else:
            broken = "no result yet"
    except (OSError, ValueError, KeyError, TypeError) as error:
        broken = f"{type(error).__name__}: {error}"
    pages = (home / INDEX, home / PAGES)
    return Found(home, label, about, state, measured, broken, next((page for page in pages if page.exists()), None))


def _rows(file: Path) -> Iterable[Row]:
    """The last row of every problem; a line that is being written is left for the next time."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    rows = (json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
    return {row["id"]: row for row in rows}.values()


def measure(rows: Sequence[Row]) -> Measured:
    """The numbers of these rows; a problem that failed counts as not right."""
    right = np.array([row["grade"] == "right" for row in rows if row["gold"] is not None], dtype=np.float64)
    spent = [spent_of(row) for row in rows]
    costs: dict[str, list[float]] = {
        "tokens": [s.tokens for s in spent],
        "forwards": [s.forwards for s in spent],
        "seconds": [s.seconds for s in spent],
        "kv": [row["kv"]["kept_tokens"] for row in rows],
    }
    return Measured(
        accuracy=paired_bootstrap(right, np.zeros(len(right))) if len(right) else None,
        costs={name: float(np.mean(values)) for name, values in costs.items()},
        problems=len(rows),
        failed=sum(row["error"] is not None for row in rows),
    )

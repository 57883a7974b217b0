"""Finds the runs below some folders and measures each: finished, unfinished or broken."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reason.config.errors import ConfigError
from reason.runs.json_files import REFUSED, parse_json, read_whole_lines
from reason.runs.metrics import PairedDifference, paired_bootstrap
from reason.runs.output_folder import read_regular
from reason.runs.result import ProblemResult, parse_results
from reason.runs.resume import FILE, flatten_settings, load_settings
from reason.runs.run import INDEX, PAGES, RESULTS, SUMMARY
from reason.runs.summary import mean_shape

Floats = npt.NDArray[np.float64]

COSTS = {
    "tokens": "tokens written per problem",
    "forwards": "target forward passes per problem, summed over branches",
    "seconds": "seconds per problem, while other problems are solved too",
    "kv": "KV tokens kept per decision (search/kv.py)",
}
"""Costs that a run's accuracy is drawn against, with their meaning; all are means per problem."""


@dataclass(frozen=True)
class RunMeasurement:
    """Measurements of one run.

    accuracy  of the chosen answers, with its 95 % interval; None without gold answers
    costs     means per problem, see `COSTS`
    shape     means over the trees, see `reason.runs.summary.SHAPE_STATISTICS`; empty for runs of earlier releases
    """

    accuracy: PairedDifference | None
    costs: Mapping[str, float]
    problems: int
    failed: int
    shape: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FoundRun:
    """One run on disk.

    label     settings in which it differs from the other runs
    differences  the same as names and values: options of groups, and single settings with a dotted name
    metadata  names of task, model, search and so on
    state     `done`, `interrupted`, `unfinished` or `refused`
    broken    why there is no measurement, None if there is one
    page      page to open, if one is written
    results   the rows, one per problem; empty where `broken` says why
    """

    folder: Path
    label: str
    metadata: Mapping[str, object]
    state: str
    measured: RunMeasurement | None
    broken: str | None
    page: Path | None
    differences: Mapping[str, object] = field(default_factory=dict)
    results: Sequence[ProblemResult] = ()

    @property
    def lossy(self) -> str | None:
        """Why the sampled text is not distributed as the target model's; None if it is."""
        lossy = self.metadata.get("lossy")
        return None if lossy is None else str(lossy)


def find_runs(folders: Iterable[Path], where: Mapping[str, str] | None = None) -> list[FoundRun]:
    """Returns each run at or below the folders, in the order of their paths and numbers; changes nothing on disk.

    A run with a broken row, or with settings that were changed after it had begun, is not measured: it is listed with
    the reason (`broken`), and the other runs are measured.

    `where` keeps only the runs that have these settings, by dotted name, or these options of groups.

    Raises: ValueError for a folder that does not exist, or if there is no run at all.
    """
    homes: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder}: there is no such folder")
        below = {file.parent for file in (*folder.rglob(FILE), *folder.rglob(REFUSED))}
        homes += sorted(below, key=lambda home: [_rank_name(name) for name in home.parts])
    if not homes:
        raise ValueError(f"no run (a folder with {FILE}) in {', '.join(map(str, folders))}")
    unique = list(dict.fromkeys(home.resolve() for home in homes))
    if where:
        unique = [home for home in unique if _has_settings(home, where)]
        if not unique:
            condition = " and ".join(f"{name}={value}" for name, value in where.items())
            raise ValueError(f"no run with {condition} in {', '.join(map(str, folders))}")
    differences = find_differences([_load_settings_or_none(home) for home in unique])
    return [_read_run(home, differing) for home, differing in zip(unique, differences, strict=True)]


WIDTH = "search.n"


def find_differences(
    runs: Sequence[tuple[Mapping[str, object], Mapping[str, str]]],
) -> list[dict[str, object]]:
    """Returns what differs, per (settings, choices): options of the groups that differ, then single settings that
    differ between runs with the same option, and the width of the search between all.

    >>> find_differences([({"search": {"n": 4}}, {"search": "ets"}), ({"search": {"n": 8}}, {"search": "ets"})])
    [{'search.n': 4}, {'search.n': 8}]
    """
    choices = [{key: value for key, value in chosen.items() if not key.startswith("hydra")} for _, chosen in runs]
    settings = [flatten_settings(config) for config, _ in runs]
    groups = sorted({key for chosen in choices for key in chosen if len({c[key] for c in choices if key in c}) > 1})
    named = []
    for flat, chosen in zip(settings, choices, strict=True):
        parts: dict[str, object] = {group: chosen[group] for group in groups if group in chosen}
        for key, value in flat.items():
            group = key.split(".")[0]
            same = [s for s, c in zip(settings, choices, strict=True) if c.get(group) == chosen.get(group)]
            peers = settings if key == WIDTH else same  # searches of two widths are not alike
            if any(peer.get(key, value) != value for peer in peers):
                parts[key] = value
        named.append(parts)
    return named


def _rank_name(name: str) -> tuple[int, str]:
    """Ranks job 2 of a sweep before job 10, and numbers before names."""
    return (int(name), name) if name.isdecimal() else (sys.maxsize, name)


def format_label(differences: Mapping[str, object]) -> str:
    """Formats what differs in the spelling of the command line.

    >>> format_label({"search": "ets", "search.n": 8}), format_label({})
    ('search=ets search.n=8', 'run')
    """
    return " ".join(f"{key}={value}" for key, value in differences.items()) or "run"


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Returns the indices of the (cost, accuracy) pairs that no other pair dominates, by rising cost.

    >>> pareto_front([(2.0, 0.5), (1.0, 0.4), (3.0, 0.5), (4.0, 0.9)])
    [1, 0, 3]
    """
    best, front = -1.0, []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[place][1] > best:
            best = points[place][1]
            front.append(place)
    return front


def _has_settings(home: Path, where: Mapping[str, str]) -> bool:
    config, choices = _load_settings_or_none(home)
    settings: dict[str, object] = {**flatten_settings(config), **choices}
    return all(name in settings and _format_value(settings[name]) == value for name, value in where.items())


def _format_value(value: object) -> str:
    """Formats a value as the command line spells it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _load_settings_or_none(home: Path) -> tuple[Mapping[str, object], Mapping[str, str]]:
    try:
        config, choices, _ = load_settings(home)
    except ConfigError:
        return {}, {}
    return config, choices


def _read_run(home: Path, differences: Mapping[str, object]) -> FoundRun:
    if (home / REFUSED).exists() and not (home / FILE).exists():
        return _read_refused(home)
    metadata: Mapping[str, object] = {}
    state, measured, broken = "unfinished", None, None
    results: list[ProblemResult] = []
    try:
        metadata = load_settings(home).about
        state = _read_state(home)
        results = list(parse_results(read_whole_lines(home / RESULTS), home / RESULTS).values())
        if results:
            measured = measure_results(results)
        else:
            broken = "no result yet"
    except (OSError, ValueError) as error:
        broken = f"{type(error).__name__}: {error}"
    pages = (home / INDEX, home / PAGES)
    return FoundRun(
        home,
        format_label(differences),
        metadata,
        state,
        measured,
        broken,
        next((page for page in pages if page.exists()), None),
        differences,
        results,
    )


def _read_refused(home: Path) -> FoundRun:
    """Reads what a job with wrong settings left."""
    try:
        refused = parse_json(read_regular(home / REFUSED))
        label, reason = " ".join(refused["overrides"]), str(refused["error"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        label, reason = home.name, f"cannot read {REFUSED} ({error})"
    return FoundRun(home, label, {}, "refused", None, reason, None)


def _read_state(home: Path) -> str:
    """Returns what the summary says of the end of a run; `unfinished` without one. Raises: ValueError; OSError."""
    try:
        summary = parse_json(read_regular(home / SUMMARY))
    except FileNotFoundError:
        return "unfinished"
    state = summary.get("stopped") if isinstance(summary, dict) else None
    if not isinstance(state, str):
        raise ValueError(f"{home / SUMMARY}: not a summary")
    return state


def measure_results(results: Sequence[ProblemResult]) -> RunMeasurement:
    """Measures these rows; a failed problem counts as not correct."""
    correct_P = np.array([result.is_correct for result in results if result.has_gold], dtype=np.float64)
    costs = [cost_of_result(result) for result in results]
    return RunMeasurement(
        accuracy=paired_bootstrap(correct_P, np.zeros(len(correct_P))) if len(correct_P) else None,
        costs={name: float(np.mean([cost[name] for cost in costs])) for name in COSTS},
        problems=len(results),
        failed=sum(result.error is not None for result in results),
        shape=mean_shape(results),
    )


def cost_of_result(result: ProblemResult) -> dict[str, float]:
    """Returns the costs of one problem, see `COSTS`."""
    usage = result.usage
    return {
        "tokens": usage.tokens,
        "forwards": usage.forwards,
        "seconds": usage.seconds,
        "kv": result.kv.kept_tokens,
    }

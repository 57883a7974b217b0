"""Executes the runs of a comparison: several searches over the same problems, each resumable."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from decoding.core import Engine
from reason import build
from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.runs.json_files import write_json
from reason.runs.output_check import check_run_folder
from reason.runs.progress import ThroughputMeter, track
from reason.runs.result import ProblemResult, ResultFile
from reason.runs.run import TaskRun

Totals = dict[str, Any]  # numbers by name, see `ThroughputMeter.read_totals`


@dataclass(frozen=True)
class RunSpec:
    """One search at one width. `overrides` are all settings of the run that are not defaults.

    search   an option of `search`, then settings of this search, quoted as in a shell: `mcts search.value=rollout`
    common   settings of all runs of the comparison
    """

    search: str
    width: int
    common: tuple[str, ...] = ()

    @property
    def overrides(self) -> list[str]:
        name, *search_settings = shlex.split(self.search)
        return [f"search={name}", f"search.n={self.width}", *self.common, *search_settings]

    @property
    def folder_name(self) -> str:
        parts = shlex.split(self.search.replace("search.", "").replace("=", "_"))
        return "-".join([*(re.sub(r"[^\w.-]+", "_", part)[:40] for part in parts), str(self.width)])


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run: its rows in the order of the problems, and the totals of the engine.

    `timeline` holds rows of (seconds since the start, running branches, waiting branches), one per round.
    """

    spec: RunSpec
    rows: list[ProblemResult]
    totals: Totals
    timeline: list[tuple[float, int, int]]

    def per_problem(self, name: str) -> float:
        """Returns one of the `totals` per problem. The totals of a resumed run are those of its last part only."""
        solved: int = len(self.rows) - self.totals.get("resumed", 0)
        return float(self.totals[name]) / max(1, solved)


def validate_runs(specs: Sequence[RunSpec]) -> None:
    """Validates the settings of all runs; loads no model. Raises: ConfigError for the first wrong setting."""
    for spec in specs:
        build.validate_settings(*compose_settings(spec.overrides))


def execute_runs(specs: Sequence[RunSpec], folder: Path, console: Console) -> list[RunOutcome]:
    """Executes runs in folders below `folder`, one after the other, or reads the finished ones.

    All settings are validated first. Raises: as `execute_run`.
    """
    validate_runs(specs)
    outcomes = []
    for number, spec in enumerate(specs, 1):
        console.print(f"{number} of {len(specs)}: {spec.search}, width {spec.width}", style="bold", markup=False)
        outcomes.append(execute_run(spec, folder / spec.folder_name, console))
    return outcomes


def execute_run(spec: RunSpec, folder: Path, console: Console) -> RunOutcome:
    """Solves the missing problems of a run in `folder`, or reads a finished run. *Mutates* the folder.

    Raises: ConfigError if the folder holds a run with other settings.
    """
    config, choices = compose_settings(spec.overrides)
    solve_spec = build.validate_settings(config, choices)
    task, stands_in_for = build.select_task(solve_spec, choices)
    metadata = solve_spec.run_metadata(task, stands_in_for)
    totals_file = folder / "totals.json"
    with closing(task):
        if totals_file.exists():
            return _read_run(spec, folder, solve_spec.config_hash)
        check_run_folder(folder)
        with solve_spec.load_solver(task) as solver:
            run = TaskRun(solver, task, folder, run_metadata=metadata, limit=config["limit"])
            _require_same_settings(run.results.values(), solve_spec.config_hash, folder)
            meter = ThroughputMeter(solver.engine)
            earlier = list(run.results.values())
            started = time.monotonic()
            for _ in track(run.solve_missing(), total=len(run.problems), before=earlier, meter=meter, console=console):
                pass
            rows = run.finish_run()
            totals = {"seconds": round(meter.elapsed_seconds, 3), "resumed": run.num_resumed, **meter.read_totals()}
            timeline = _timeline(solver.engine, started)
    write_json(folder / "settings.json", config)
    write_json(totals_file, {"config": solve_spec.config_hash, "totals": totals, "timeline": timeline})
    return RunOutcome(spec, rows, totals, timeline)


def _read_run(spec: RunSpec, folder: Path, config_hash: str) -> RunOutcome:
    saved = json.loads((folder / "totals.json").read_text(encoding="utf-8"))
    rows = list(ResultFile(folder / "results.jsonl").read_results().values())
    _require_same_settings(rows, config_hash, folder)
    return RunOutcome(spec, rows, saved["totals"], [(t, r, w) for t, r, w in saved["timeline"]])


def _require_same_settings(rows: Iterable[ProblemResult], config_hash: str, folder: Path) -> None:
    if any(row.metadata.get("config") != config_hash for row in rows):
        raise ConfigError(f"{folder} holds results of other settings; give another --folder, or delete it")


def _timeline(engine: Engine, started: float) -> list[tuple[float, int, int]]:
    """Returns at most 500 moments, evenly spread over the rounds in the engine's timeline."""
    moments = list(engine.stats.timeline)
    step = max(1, len(moments) // 500)
    return [(round(m.time - started, 3), m.running, m.waiting) for m in moments[::step]]

"""Executes the runs of a comparison: several searches over the same problems, each resumable."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console

from decoding.core import Engine
from reason.config.compose import Settings, compose_settings
from reason.config.errors import ConfigError
from reason.runs.json_files import write_json
from reason.runs.output_check import check_run_folder
from reason.runs.progress import ThroughputMeter, track
from reason.runs.result import ProblemResult, ResultFile
from reason.runs.run import RESULTS, TaskRun
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings
from reason.tasks.base import Task
from reason.tasks.selection import select_task

Totals = dict[str, Any]  # numbers by name, see `ThroughputMeter.read_totals`

TOTALS = "totals.json"
SUMMED = ("seconds", "tokens", "forwards")
"""Totals that add up over the parts of a run; of the others the mean over problems is meant."""


@dataclass(frozen=True)
class RunSpec:
    """One search at one width. `overrides` are all settings of the run that are not defaults.

    search   an option of `search`, then settings of this search, quoted as in a shell: `mcts search.value=rollout`
    common   settings of all runs of the comparison
    seed     of this run, where the comparison has several; None: that of the settings
    """

    search: str
    width: int
    common: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def label(self) -> str:
        """The search with its settings and its width."""
        return f"{self.search} {self.width}"

    @property
    def overrides(self) -> list[str]:
        name, *search_settings = shlex.split(self.search)
        seed = [] if self.seed is None else [f"seed={self.seed}"]
        return [f"search={name}", f"search.n={self.width}", *self.common, *search_settings, *seed]

    @property
    def folder_name(self) -> str:
        parts = shlex.split(self.search.replace("search.", "").replace("=", "_"))
        seed = [] if self.seed is None else [f"seed_{self.seed}"]
        return "-".join([*map(_name_part, parts), str(self.width), *seed])


def _name_part(part: str) -> str:
    """Returns a part of a folder's name; one that is not the part itself ends with a hash, or two searches share it."""
    name = re.sub(r"[^\w.-]+", "_", part)[:40]
    return name if name == part else f"{name}-{sha256(part.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """The result of a run: its rows in the order of the problems, and the totals of the engine; equal to itself alone.

    With several seeds (`merge_seeds`) a problem has a row for each.
    `timeline` holds rows of (seconds since the start, running branches, waiting branches), one per round.
    """

    spec: RunSpec
    rows: list[ProblemResult]
    totals: Totals
    timeline: list[tuple[float, int, int]]

    def per_problem(self, name: str) -> float:
        """Returns one of the `totals` per problem that they are of: those of a part that was killed are lost."""
        solved: int = self.totals.get("solved", len(self.rows))
        return float(self.totals[name]) / max(1, solved)


@cache
def plan_run(spec: RunSpec) -> SolveSpec:
    """Returns the checked settings of a run; loads no model. Raises: ConfigError for the first wrong setting."""
    return validate_settings(*compose_settings(spec.overrides))


def validate_runs(specs: Sequence[RunSpec]) -> None:
    """Validates the settings of all runs; loads no model. Raises: as `plan_run`."""
    for spec in specs:
        plan_run(spec)


def require_gold_answers(spec: RunSpec) -> None:
    """Loads the problems of a run. Raises: ConfigError if one has no gold answer: nothing can be compared then."""
    config, choices = compose_settings(spec.overrides)
    plan = plan_run(spec)
    task, _ = select_task(plan.config, choices, plan.scorer)
    with closing(task):
        lacking = [problem.id for problem in list(task)[: config["limit"]] if problem.answer is None]
    if lacking:
        raise ConfigError(
            f"{lacking[0]} has no gold answer, and comparisons count right ones; with +task=file set "
            "task.answer_field, with +task=code task.run_code=true, or choose another task"
        )


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


def execute_run(spec: RunSpec, folder: Path, console: Console, *, num_problems: int | None = None) -> RunOutcome:
    """Solves the missing problems of a run in `folder`, or reads a finished run. *Mutates* the folder.

    num_problems  of the task, from the first; the run may be continued with more of them later. None: all

    Raises: ConfigError if the folder holds a run with other settings.
    """
    config, choices = compose_settings(spec.overrides)
    solve_spec = validate_settings(config, choices)
    task, stands_in_for = select_task(solve_spec.config, choices, solve_spec.scorer)
    metadata = solve_spec.run_metadata(task, stands_in_for)
    limit = min(len(task) if limit is None else limit for limit in (config["limit"], num_problems))
    with closing(task):
        parts = _read_parts(folder, solve_spec.config_hash)
        rows = ResultFile(folder / RESULTS).read_results()
        _require_same_settings(rows.values(), solve_spec.config_hash, folder)
        ids = [problem.id for problem in list(task)[:limit]]
        if not parts or any(name not in rows for name in ids):
            parts.append(_execute_part(solve_spec, task, folder, console, metadata, limit))
            _write_parts(folder, config, solve_spec.config_hash, parts)
            rows = ResultFile(folder / RESULTS).read_results()
    return RunOutcome(spec, [rows[name] for name in ids], _add_totals(parts), parts[0].timeline)


def merge_seeds(outcomes: Sequence[RunOutcome]) -> RunOutcome:
    """Returns runs of one search with several seeds as one, in which a problem has a row for each seed."""
    first = outcomes[0]
    parts = [
        RunPart(outcome.totals.get("solved", len(outcome.rows)), outcome.totals, outcome.timeline)
        for outcome in outcomes
    ]
    rows = [row for outcome in outcomes for row in outcome.rows]
    return RunOutcome(replace(first.spec, seed=None), rows, _add_totals(parts), first.timeline)


@dataclass(frozen=True)
class RunPart:
    """Problems of a run that were solved in one go, and what the engine needed for them."""

    num_problems: int
    totals: Totals
    timeline: list[tuple[float, int, int]]


def _execute_part(
    solve_spec: SolveSpec,
    task: Task,
    folder: Path,
    console: Console,
    metadata: Mapping[str, object],
    limit: int,
) -> RunPart:
    """Solves the first `limit` problems as far as they have no rows. *Mutates* the folder."""
    check_run_folder(folder)
    with solve_spec.load_solver(task, allocates=True) as solver:
        run = TaskRun(solver, task, folder, run_metadata=metadata, limit=limit, allocation=solve_spec.allocation)
        meter = ThroughputMeter(solver.engine)
        earlier = list(run.results.values())
        started = time.monotonic()
        shown = track(
            run.solve_missing(),
            total=run.total_work,
            before=earlier,
            meter=meter,
            console=console,
            measure_work=run.measure_work,
        )
        for _ in shown:
            pass
        rows = run.finish_run()
        totals = {"seconds": round(meter.elapsed_seconds, 3), **meter.read_totals()}
        return RunPart(len(rows) - run.num_resumed, totals, _timeline(solver.engine, started))


def _read_parts(folder: Path, config_hash: str) -> list[RunPart]:
    """Returns the parts of the run in a folder; a file of the last release has one."""
    if not (folder / TOTALS).exists():
        return []
    saved = json.loads((folder / TOTALS).read_text(encoding="utf-8"))
    if saved["config"] != config_hash:
        raise _other_settings(folder)
    if "parts" not in saved:
        num_rows = len(ResultFile(folder / RESULTS).read_results())
        saved["parts"] = [saved | {"problems": num_rows - saved["totals"].get("resumed", 0)}]
    return [
        RunPart(part["problems"], part["totals"], [(t, r, w) for t, r, w in part["timeline"]])
        for part in saved["parts"]
    ]


def _write_parts(folder: Path, config: Settings, config_hash: str, parts: Sequence[RunPart]) -> None:
    write_json(folder / "settings.json", config)
    saved = [{"problems": part.num_problems, "totals": part.totals, "timeline": part.timeline} for part in parts]
    write_json(folder / TOTALS, {"config": config_hash, "parts": saved})


def _add_totals(parts: Sequence[RunPart]) -> Totals:
    """Returns the totals of all parts: sums of the counts, means over problems of the others, and the problems
    `solved` in them."""
    totals: Totals = {"solved": sum(part.num_problems for part in parts)}
    for name in parts[0].totals:
        known = [(part.totals[name], part.num_problems) for part in parts if part.totals.get(name) is not None]
        if name in SUMMED:
            totals[name] = round(math.fsum(value for value, _ in known), 3)
        elif name not in ("resumed", "solved"):
            weight = sum(count for _, count in known)
            totals[name] = math.fsum(value * count for value, count in known) / weight if weight else None
    return totals


def _require_same_settings(rows: Iterable[ProblemResult], config_hash: str, folder: Path) -> None:
    if any(row.metadata.get("config") != config_hash for row in rows):
        raise _other_settings(folder)


def _other_settings(folder: Path) -> ConfigError:
    return ConfigError(f"{folder} holds results of other settings; give another --folder, or delete it")


def _timeline(engine: Engine, started: float) -> list[tuple[float, int, int]]:
    """Returns at most 500 moments, evenly spread over the rounds in the engine's timeline."""
    moments = list(engine.stats.timeline)
    step = max(1, len(moments) // 500)
    return [(round(m.time - started, 3), m.running, m.waiting) for m in moments[::step]]

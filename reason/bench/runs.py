"""Runs of several searches over the same problems, each resumable: what a comparison is made of."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from reason import build
from reason.config.compose import composed
from reason.config.errors import ConfigError
from reason.runs.progress import Gauge, watched
from reason.runs.result_file import ResultFile, Row, write_json
from reason.runs.run import Run


@dataclass(frozen=True)
class Arm:
    """One search at one width. `overrides` are all its settings besides the defaults.

    search   the member of `search` and, after it, settings that belong to it: `mcts search.value=rollout`
    """

    search: str
    width: int
    common: tuple[str, ...] = ()

    @property
    def overrides(self) -> list[str]:
        name, *own = self.search.split()
        return [f"search={name}", f"search.n={self.width}", *self.common, *own]

    @property
    def folder_name(self) -> str:
        return "-".join([*self.search.replace("search.", "").replace("=", "_").split(), str(self.width)])


@dataclass(frozen=True)
class Outcome:
    """What an arm gave: its rows in the order of the problems, and the engine's account of it (`totals`).

    `timeline` holds rows of (seconds since the start, running branches, waiting branches), one per round.
    """

    arm: Arm
    rows: list[Row]
    totals: dict[str, Any]
    timeline: list[tuple[float, int, int]]

    def per_problem(self, name: str) -> float:
        """One of the `totals` for each problem. An arm that was resumed has those of its last part only."""
        solved: int = len(self.rows) - self.totals.get("resumed", 0)
        return float(self.totals[name]) / max(1, solved)


def check_arms(arms: Sequence[Arm]) -> None:
    """Raises: ConfigError for the first arm whose settings are wrong; loads nothing."""
    for arm in arms:
        build.check(*composed(arm.overrides))


def run_arm(arm: Arm, folder: Path, console: Console) -> Outcome:
    """Solve what is missing of an arm in `folder`, or read what is there. *Mutates* the folder.

    Raises: ConfigError if the folder holds an arm with other settings.
    """
    config, choices = composed(arm.overrides)
    plan = build.check(config, choices)
    task, stands_in_for = build.task_of(plan, choices)
    stamp = plan.stamp(task, stands_in_for)
    done = folder / "totals.json"
    with closing(task):
        if done.exists():
            return _read(arm, folder, plan.digest)
        with plan.open(task) as solver:
            run = Run(solver, task, folder, stamp=stamp, limit=config["limit"])
            _require_digest(run.rows.values(), plan.digest, folder)
            gauge = Gauge(solver.engine)
            before = list(run.rows.values())
            started = time.monotonic()
            for _ in watched(run.go(), total=len(run.problems), before=before, gauge=gauge, console=console):
                pass
            rows = run.finish()
            totals = {"seconds": round(gauge.seconds, 3), "resumed": run.resumed, **gauge.read()}
            timeline = _timeline(solver.engine, started)
    write_json(folder / "settings.json", config)
    write_json(done, {"config": plan.digest, "totals": totals, "timeline": timeline})
    return Outcome(arm, rows, totals, timeline)


def _read(arm: Arm, folder: Path, digest: str) -> Outcome:
    saved = json.loads((folder / "totals.json").read_text(encoding="utf-8"))
    rows = list(ResultFile(folder / "results.jsonl").read().values())
    _require_digest(rows, digest, folder)
    return Outcome(arm, rows, saved["totals"], [(t, r, w) for t, r, w in saved["timeline"]])


def _require_digest(rows: Any, digest: str, folder: Path) -> None:
    if any(row["config"] != digest for row in rows):
        raise ConfigError(f"{folder} holds results of other settings; give another --folder, or delete it")


def _timeline(engine: Any, started: float) -> list[tuple[float, int, int]]:
    """At most 500 moments, evenly spread over the rounds the engine remembers."""
    stats = getattr(engine, "stats", None)
    moments = [] if stats is None else list(stats.timeline)
    every = max(1, len(moments) // 500)
    return [(round(m.time - started, 3), m.running, m.waiting) for m in moments[::every]]

"""Builds the page of many runs: accuracy against cost, and a table; every point leads to its run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from reason.runs.gather import COSTS, FoundRun, RunMeasurement, pareto_front
from reason.runs.pages.embed import fill_template, link_page
from reason.runs.pages.report_names import name_runs


def report_page(runs: Sequence[FoundRun], title: str, home: Path) -> str:
    """Returns a self-contained HTML page for the folder `home`, to which its links are relative."""
    data = {
        "title": title,
        "costs": COSTS,
        "fronts": {cost: front_of_runs(runs, cost) for cost in COSTS},
        "runs": [_row_data(run, home) | name._asdict() for run, name in zip(runs, name_runs(runs), strict=True)],
    }
    return fill_template("report.html", data)


def front_of_runs(runs: Sequence[FoundRun], cost: str) -> list[int]:
    """Returns the indices of the runs on the Pareto front of accuracy and this cost."""
    graded = [
        (i, run.measured.costs[cost], run.measured.accuracy.value)
        for i, run in enumerate(runs)
        if run.measured is not None and run.measured.accuracy is not None
    ]
    return [graded[place][0] for place in pareto_front([(value, accuracy) for _, value, accuracy in graded])]


def _row_data(run: FoundRun, home: Path) -> dict[str, object]:
    return {
        "label": run.label,
        "folder": os.path.relpath(run.folder, home),
        "href": None if run.page is None else link_page(run.page, home),
        "state": run.state,
        "lossy": run.lossy,
        "broken": run.broken,
        **({} if run.measured is None else _measured_data(run.measured)),
    }


def _measured_data(measured: RunMeasurement) -> dict[str, object]:
    accuracy = measured.accuracy
    known = {} if accuracy is None else {"accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high}
    return {**known, **measured.costs, "problems": measured.problems, "failed": measured.failed, **measured.shape}

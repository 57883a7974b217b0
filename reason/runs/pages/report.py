"""Many runs as one page: accuracy against what it cost, and a table; every point leads to its run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reason.runs.gather import COSTS, Found, Measured, pareto
from reason.runs.pages.embed import fill


def report_page(runs: Sequence[Found], title: str, home: Path) -> str:
    """An HTML page, whole in itself, that will lie in the folder `home`: its links are relative to that."""
    data = {
        "title": title,
        "costs": COSTS,
        "fronts": {cost: front(runs, cost) for cost in COSTS},
        "runs": [_row(run, home) for run in runs],
    }
    return fill("report.html", data)


def front(runs: Sequence[Found], cost: str) -> list[int]:
    """The places of the runs that no other beats at accuracy and this cost."""
    graded = [
        (i, run.measured.costs[cost], run.measured.accuracy.value)
        for i, run in enumerate(runs)
        if run.measured is not None and run.measured.accuracy is not None
    ]
    return [graded[place][0] for place in pareto([(spent, accuracy) for _, spent, accuracy in graded])]


def _row(run: Found, home: Path) -> dict[str, Any]:
    return {
        "label": run.label,
        "folder": os.path.relpath(run.folder, home),
        "href": None if run.page is None else Path(os.path.relpath(run.page, home)).as_posix(),
        "state": run.state,
        "broken": run.broken,
        **({} if run.measured is None else _numbers(run.measured)),
    }


def _numbers(measured: Measured) -> dict[str, Any]:
    accuracy = measured.accuracy
    known = {} if accuracy is None else {"accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high}
    return {**known, **measured.costs, "problems": measured.problems, "failed": measured.failed}

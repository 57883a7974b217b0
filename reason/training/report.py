"""How good the trained models are: the usual metrics on held-out problems, by family and difficulty."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from reason.build import load
from reason.runs.metrics import summarise
from reason.runs.result import samples_of, solution_row
from reason.solver import Solver
from reason.tasks.synthetic import Synthetic
from reason.tasks.synthetic.families import FAMILIES

logger = logging.getLogger(__name__)
Figures = dict[str, dict[str, float]]  # "family/difficulty" to metric to value


def report(writer: Path, prm: Path | None, *, problems: int, samples: int) -> Figures:
    """Metrics of `samples` solutions for `problems` held-out problems of every kind; scored if there is a `prm`."""
    search = ["search=best_of_n", f"scorer.path={prm}"] if prm else ["search=self_consistency", "scorer=none"]
    with load(f"model.path={writer}", f"search.n={samples}", *search) as solver:
        return dict(_cells(solver, problems))


def _cells(solver: Solver, problems: int) -> Iterator[tuple[str, dict[str, float]]]:
    for family, cls in FAMILIES.items():
        for difficulty in cls.difficulties:
            task = Synthetic(families=[family], difficulty=difficulty, size=problems, seed=1)
            rows = []
            for _, outcome in solver.solve_many(task):
                if isinstance(outcome, Exception):
                    raise outcome
                rows.append(solution_row(outcome, task.grade_text))
            metrics = {name: metric.value for name, metric in summarise([samples_of(row) for row in rows]).items()}
            logger.info("%s/%d: %s", family, difficulty, metrics)
            yield f"{family}/{difficulty}", metrics

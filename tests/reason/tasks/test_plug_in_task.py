"""A task is added with two files, a class and a yaml, outside of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason.config.compose import compose_settings
from reason.runs.metrics import compute_metrics
from reason.runs.result import ProblemResult
from reason.settings.validate import validate_settings
from reason.tasks.selection import select_task
from tests.support.toy_solver import toy_solver

CODE = """
from reason import Problem
from reason.tasks.base import Task


class Doubles(Task):
    def __init__(self, *, size: int = 3, limit: int | None = None) -> None:
        problems = [Problem(id=f"doubles/{i}", question=f"2 * {i} = ?", answer=str(2 * i % 6)) for i in range(size)]
        super().__init__("doubles", problems, limit=limit)
"""


def test_two_files_add_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is found by its `_target_`; extraction, grading and metrics come from the base class."""
    (tmp_path / "doubles.py").write_text(CODE)
    (tmp_path / "doubles.yaml").write_text("_target_: doubles.Doubles\nsize: 4\nlimit: 3\n")
    config, choices = compose_settings([f"plugins=[{tmp_path}/doubles.py]", "search=self_consistency", "scorer=none"])
    task_settings = {"_target_": "doubles.Doubles", "size": 4, "limit": 3}
    spec = validate_settings({**config, "task": task_settings}, choices)
    task, stands_in_for = select_task(spec.config, choices, spec.scorer)
    assert (task.name, len(task), stands_in_for) == ("doubles", 3, None)
    assert str(task.grade(task[2], "4")) == "right"
    with toy_solver() as solver:
        results = [ProblemResult.from_solution(solver.solve(problem), task.grade_text) for problem in task]
    metrics = compute_metrics([result.graded_samples for result in results])
    assert metrics["maj@4"].problems == 3
    assert metrics["avg@4"].value == pytest.approx(
        sum(sample.is_correct for result in results for sample in result.samples) / 12
    )

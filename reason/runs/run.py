"""Solve the problems of a task and put every one on disk as it is done; start again where a killed run stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from reason.problem import Problem, Solution
from reason.runs.pages import index_page, tree_page
from reason.runs.result import error_row, in_short, solution_row
from reason.runs.result_file import ResultFile, Row, file_name, write_json, write_whole
from reason.solver import Solver
from reason.tasks.base import Task
from search.strategy import Strategy

INDEX, PAGES = "index.html", "pages"

log = logging.getLogger(__name__)


class Run:
    """One run over some problems, in one folder: `results.jsonl`, `trees/`, and pages to look at them.

    `stamp` goes into every row: what was run, with which seed, configuration and versions. Rows that are
    already in the folder are kept, except those that say a problem failed: it is tried again.
    """

    def __init__(
        self, solver: Solver, task: Task, folder: Path, *, stamp: dict[str, Any], limit: int | None = None
    ) -> None:
        self.solver = solver
        self.task = task
        self.folder = folder
        self.stamp = stamp
        self.problems: Sequence[Problem] = list(task)[:limit]
        self._file = ResultFile(folder / "results.jsonl")
        known = self._file.read()
        self.rows: dict[str, Row] = {
            problem.id: known[problem.id]
            for problem in self.problems
            if problem.id in known and not known[problem.id].get("error")
        }
        self.resumed = len(self.rows)

    def go(self) -> Iterator[Row]:
        """Each missing problem's row, on disk before it is yielded. *Mutates* the run and its folder.

        Closing the iterator, or an exception thrown into it, cancels what is under way.
        """
        missing = [problem for problem in self.problems if problem.id not in self.rows]
        for problem, outcome in self.solver.solve_many(missing):
            row = self._row(problem, outcome) | self.stamp
            self._file.append(row)
            self.rows[problem.id] = row
            log.info("problem done", extra=in_short(row))
            yield row

    @property
    def page(self) -> Path:
        """What to look at: the only problem's page, or the list of all."""
        if len(self.problems) == 1:
            return self.folder / PAGES / f"{file_name(self.problems[0].id)}.html"
        return self.folder / INDEX

    def finish(self) -> list[Row]:
        """The rows in the order of the problems. The file is in it too, and a page lists them. *Mutates* the folder."""
        rows = self._file.arrange(problem.id for problem in self.problems)
        pages = {row["id"]: f"{PAGES}/{file_name(row['id'])}.html" for row in rows}
        links = {problem: page for problem, page in pages.items() if (self.folder / page).exists()}
        title = ", ".join(str(self.stamp[name]) for name in ("task", "model", "search") if name in self.stamp)
        write_whole(self.folder / INDEX, index_page(rows, links, title or "results").encode())
        return rows

    def _row(self, problem: Problem, outcome: Solution | Exception) -> Row:
        if isinstance(outcome, Exception):
            log.error("%s failed", problem.id, exc_info=outcome)
            return error_row(problem, outcome)
        row = solution_row(outcome, self.task.grade_text)
        record = tree_record(outcome) | {"strategy": settings_of(self.solver.strategy)}
        write_json(self.folder / "trees" / f"{file_name(problem.id)}.json", record)
        page = tree_page(record, row, index=f"../{INDEX}")
        write_whole(self.folder / PAGES / f"{file_name(problem.id)}.html", page.encode())
        return row


def settings_of(strategy: Strategy) -> dict[str, Any]:
    """A strategy's class and knobs as plain data."""
    kind = type(strategy)
    knobs: dict[str, Any] = asdict(strategy) if is_dataclass(strategy) else {}
    return {"_target_": f"{kind.__module__}.{kind.__qualname__}", **knobs}


def tree_record(solution: Solution) -> dict[str, Any]:
    """A whole search as plain data: what was asked, what was explored, what was chosen."""
    result = solution.result
    return {
        "id": solution.problem.id,
        "question": solution.problem.question,
        "best": result.best,
        "answer": solution.answer,
        "votes": result.votes,
        "stopped": result.stopped,
        "candidates": [{"node": c.node, "answer": c.answer, "score": c.score} for c in result.candidates],
        "selections": [asdict(decision) for decision in result.selections],
        **result.tree.to_dict(),
    }

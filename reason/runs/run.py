"""Solves the problems of a task and writes each result to disk when it is there; resumes an interrupted run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path

from reason.problem import Problem, Solution
from reason.runs.json_files import safe_file_name, write_atomically, write_json
from reason.runs.pages import index_page, tree_page
from reason.runs.pages.records import TreeRecord
from reason.runs.result import ProblemResult, ResultFile
from reason.solver import Solver
from reason.tasks.base import Task
from search.strategy import Strategy

INDEX, PAGES = "index.html", "pages"

log = logging.getLogger(__name__)


class TaskRun:
    """One run over the problems of a task, in one folder: `results.jsonl`, `trees/`, and HTML pages.

    `run_metadata` goes into every row: what was run, with which seed, configuration and versions. Rows that are
    already in the folder are kept, except those of failed problems, which are tried again.
    """

    def __init__(
        self,
        solver: Solver,
        task: Task,
        folder: Path,
        *,
        run_metadata: Mapping[str, object],
        limit: int | None = None,
    ) -> None:
        self.solver = solver
        self.task = task
        self.folder = folder
        self.run_metadata = run_metadata
        self.problems: Sequence[Problem] = list(task)[:limit]
        self.file = ResultFile(folder / "results.jsonl")
        earlier = self.file.read_results()
        self.results: dict[str, ProblemResult] = {
            problem.id: earlier[problem.id]
            for problem in self.problems
            if problem.id in earlier and earlier[problem.id].error is None
        }
        self.num_resumed = len(self.results)

    def solve_missing(self) -> Iterator[ProblemResult]:
        """Solves the problems without a result; each row is on disk before it is yielded. *Mutates* run and folder.

        Closing the iterator, or an exception thrown into it, cancels the problems under way.
        """
        missing = [problem for problem in self.problems if problem.id not in self.results]
        for problem, outcome in self.solver.solve_many(missing):
            result = self._write_result(problem, outcome)
            self.file.append_result(result)
            self.results[problem.id] = result
            log.info("problem done", extra=result.summary_fields())
            yield result

    @property
    def start_page(self) -> Path:
        """The page to open first: that of the only problem, or the index of all problems."""
        if len(self.problems) == 1:
            return self.folder / PAGES / f"{safe_file_name(self.problems[0].id)}.html"
        return self.folder / INDEX

    def finish_run(self) -> list[ProblemResult]:
        """Writes the index page and returns the rows in the order of the problems. *Mutates* the folder."""
        results = self.file.reorder_results(problem.id for problem in self.problems)
        pages = {result.id: f"{PAGES}/{safe_file_name(result.id)}.html" for result in results}
        links = {problem_id: page for problem_id, page in pages.items() if (self.folder / page).exists()}
        names = ("task", "model", "search")
        title = ", ".join(str(self.run_metadata[name]) for name in names if name in self.run_metadata)
        write_atomically(self.folder / INDEX, index_page(results, links, title or "results").encode())
        return results

    def _write_result(self, problem: Problem, outcome: Solution | Exception) -> ProblemResult:
        if isinstance(outcome, Exception):
            log.error("%s failed", problem.id, exc_info=outcome)
            return ProblemResult.from_error(problem, outcome, self.run_metadata)
        result = ProblemResult.from_solution(outcome, self.task.grade_text, self.run_metadata)
        record = tree_record(outcome)
        record["strategy"] = strategy_settings(self.solver.strategy)
        write_json(self.folder / "trees" / f"{safe_file_name(problem.id)}.json", record)
        page = tree_page(record, result, index=f"../{INDEX}")
        write_atomically(self.folder / PAGES / f"{safe_file_name(problem.id)}.html", page.encode())
        return result


def strategy_settings(strategy: Strategy) -> dict[str, object]:
    """Returns a strategy's class (`_target_`) and settings as plain data."""
    kind = type(strategy)
    settings: dict[str, object] = asdict(strategy) if is_dataclass(strategy) else {}
    return {"_target_": f"{kind.__module__}.{kind.__qualname__}", "select": strategy.select, **settings}


def tree_record(solution: Solution) -> TreeRecord:
    """Returns a whole search as plain data: the question, the explored tree, the decisions, the chosen answer."""
    result = solution.result
    tree = result.tree.to_dict()
    return {
        "id": solution.problem.id,
        "question": solution.problem.question,
        "best": result.best,
        "answer": solution.answer,
        "votes": result.votes,
        "stopped": result.stop_reason,
        "candidates": [{"node": c.node, "answer": c.answer, "score": c.score} for c in result.candidates],
        "selections": [asdict(decision) for decision in result.selections],
        "root": tree["root"],
        "nodes": tree["nodes"],
    }

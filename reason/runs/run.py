"""Solves the problems of a task and writes each result to disk when it is there; resumes an interrupted run."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, is_dataclass
from pathlib import Path

from reason.concurrency import SolveOutcome
from reason.config.prefix import canonical_name
from reason.problem import Problem, Solution
from reason.runs.allocation import SampleAllocation
from reason.runs.json_files import format_json, safe_file_name
from reason.runs.output_folder import OutputError, OutputFolder
from reason.runs.pages import index_page, tree_page
from reason.runs.pages.records import TreeRecord
from reason.runs.result import ProblemResult, ResultFile
from reason.runs.resume import load_origin, require_rows_of_run
from reason.runs.sample_rounds import ALLOCATED, SampleRounds, count_allocated, drop_failed_round, mark_failed_round
from reason.runs.summary import RunSummary
from reason.solver import Solver
from reason.tasks.base import Task
from search.strategy import Strategy

RESULTS, SUMMARY, INDEX, TREES, PAGES = "results.jsonl", "summary.json", "index.html", "trees", "pages"

_LIVE_PAGE_S = 2.0  # at least so long between two index pages of a run under way
_LIVE_PAGE_SHARE = 0.02  # of the time, at most, goes into writing them

log = logging.getLogger(__name__)


class TaskRun:
    """One run over the problems of a task, in one folder: `results.jsonl`, `trees/`, and HTML pages.

    `run_metadata` goes into every row: what was run, with which seed, configuration and versions. Rows that are
    already in the folder are kept, except those of failed problems, which are tried again. A result that cannot be
    saved ends the run at once: what is on disk stays as it is, and nothing more is computed for nothing.

    With an `allocation` the samples of the run are written in rounds, and the row of a problem is replaced by one with
    more samples in each round that gives it some. `total_work` and `measure_work` then count samples, not problems.

    Raises: ValueError naming a broken row, a problem that had another question, or a strategy whose samples cannot be
    divided; OutputError.
    """

    def __init__(
        self,
        solver: Solver,
        task: Task,
        folder: Path,
        *,
        run_metadata: Mapping[str, object],
        limit: int | None = None,
        allocation: SampleAllocation | None = None,
    ) -> None:
        self.solver = solver
        self.task = task
        self.folder = folder
        self.run_metadata = run_metadata
        self.problems: Sequence[Problem] = list(task)[:limit]
        self._output = OutputFolder(folder)
        self._output.make()
        self._output.remove_partial_files(TREES, PAGES)
        self.file = ResultFile(folder / RESULTS)
        earlier = self.file.read_results()
        require_same_questions(earlier, self.problems)
        rows = {problem.id: earlier[problem.id] for problem in self.problems if problem.id in earlier}
        self._retried: list[ProblemResult] = []  # rows without their last round, which failed
        if allocation is not None:
            self._retried = [drop_failed_round(row) for row in rows.values() if row.error is not None and row.samples]
            rows |= {row.id: row for row in self._retried}
        self.results: dict[str, ProblemResult] = {name: row for name, row in rows.items() if row.error is None}
        self.num_resumed = len(self.results)
        self.rounds = None if allocation is None else SampleRounds(allocation, solver, folder / TREES)
        self._allocated: Mapping[str, int] = {}
        self._under_way: dict[Future[Solution], Problem] = {}  # also those that are done, until their row is saved

    @property
    def total_work(self) -> int:
        """Problems of the run, or with an allocation its samples."""
        if self.rounds is None:
            return len(self.problems)
        return min(self.rounds.allocation.samples, self.rounds.strategy.n) * len(self.problems)

    def measure_work(self, result: ProblemResult) -> int:
        """Returns what a row counts of `total_work`."""
        return 1 if self.rounds is None else count_allocated(result)

    def solve_missing(self) -> Generator[ProblemResult, None, None]:
        """Solves the problems without a result; each row is on disk before it is yielded. *Mutates* run and folder.

        Closing the iterator, or an exception thrown into it, cancels the problems under way. Those that were solved
        by then, but waited for the grading of others, are saved first.

        Raises: OutputError as soon as a result cannot be saved.
        """
        next_page = 0.0
        while self._retried:  # they may get no further samples, and are then as they would be without the failure
            self.file.append_result(self._retried.pop(0))
        try:
            with closing(self._solve_rounds()) as outcomes:  # what runs is cancelled first
                for problem, outcome in outcomes:
                    result = self._save_outcome(problem, outcome)
                    if (begin := time.monotonic()) >= next_page and self._goes_on():
                        self._write_live_index()
                        took = time.monotonic() - begin
                        next_page = begin + max(_LIVE_PAGE_S, took / _LIVE_PAGE_SHARE)
                    yield result
        except OutputError:
            raise
        except BaseException:
            self._save_solved()
            raise

    def _save_outcome(self, problem: Problem, outcome: Solution | Exception) -> ProblemResult:
        """Grades and saves a problem. *Mutates* run and folder. Raises: OutputError."""
        try:
            result = self._write_result(problem, outcome)
            self.file.append_result(result)
        except OutputError as error:
            saved = f"{len(self.results)} of {len(self.problems)} problems are saved"
            raise OutputError(f"{error}; {saved}, and the run ends here") from error
        self.results[problem.id] = result
        self._under_way = {future: other for future, other in self._under_way.items() if other is not problem}
        log.info("problem done", extra=result.summary_fields())
        return result

    def _save_solved(self) -> None:
        """Saves the problems that are solved and have no row yet. *Mutates* run and folder."""
        solved = [(problem, future) for future, problem in self._under_way.items() if _is_solved(future)]
        if solved:
            log.warning("saving %d more problems that are solved; a second Ctrl-C leaves them unsaved", len(solved))
        for problem, future in solved:
            self._save_outcome(problem, future.result())

    def _solve_rounds(self) -> Generator[SolveOutcome, None, None]:
        """Solves the problems without a result, or those that the allocation gives more samples, round by round."""
        if self.rounds is None:
            missing = [problem for problem in self.problems if problem.id not in self.results]
            yield from self.solver.solve_many(missing, self._submit)
            return
        while planned := self.rounds.plan_round(self.problems, self.results):
            self._allocated = planned
            chosen = [problem for problem in self.problems if problem.id in planned]
            yield from self.solver.solve_many(chosen, self._submit)

    def _submit(self, problem: Problem) -> Future[Solution]:
        if self.rounds is None:
            future = self.solver.submit(problem)
        else:
            future = self.rounds.submit(problem, self._allocated[problem.id], self.results.get(problem.id))
        self._under_way[future] = problem
        return future

    def _goes_on(self) -> bool:
        return self.rounds is not None or len(self.results) < len(self.problems)

    @property
    def start_page(self) -> Path:
        """The page to open first: that of the only problem, or the index of all problems."""
        if len(self.problems) == 1:
            return self.folder / PAGES / f"{safe_file_name(self.problems[0].id)}.html"
        return self.folder / INDEX

    def finish_run(self) -> list[ProblemResult]:
        """Writes the index page and returns the rows in the order of the problems. *Mutates* the folder.

        Raises: OutputError, also where rows that were saved are no longer there.
        """
        results = self.file.reorder_results(problem.id for problem in self.problems)
        if lost := self.results.keys() - {result.id for result in results}:
            raise OutputError(
                f"{self.file.path} has lost {len(lost)} of the rows that were saved, {min(lost)} among them"
            )
        self.write_index(results)
        return results

    def _write_live_index(self) -> None:
        """Writes the index page of the results so far, which loads itself again while the run goes on."""
        results = [self.results[problem.id] for problem in self.problems if problem.id in self.results]
        self.write_index(results, num_problems=len(self.problems))

    def write_index(
        self, results: Sequence[ProblemResult], summary: RunSummary | None = None, *, num_problems: int | None = None
    ) -> None:
        """Writes the index page of these rows; with the run's summary it shows its numbers. *Mutates* the folder.

        `num_problems` is that of a run under way; None: the run is over.

        Raises: OutputError, also where `run.json` is broken.
        """
        pages = {result.id: f"{PAGES}/{safe_file_name(result.id)}.html" for result in results}
        links = {problem_id: page for problem_id, page in pages.items() if (self.folder / page).exists()}
        about = {**self.run_metadata, **load_origin(self.folder)}
        self._output.replace(INDEX, index_page(results, links, about, summary, num_problems).encode())

    def _write_result(self, problem: Problem, outcome: Solution | Exception) -> ProblemResult:
        allocated = {} if self.rounds is None else {ALLOCATED: self._allocated[problem.id]}
        metadata = {**self.run_metadata, **allocated}
        if isinstance(outcome, Exception):
            log.error("%s failed", problem.id, exc_info=outcome)
            if self.rounds is not None and (earlier := self.results.get(problem.id)) is not None:
                return mark_failed_round(earlier, outcome)
            return ProblemResult.from_error(problem, outcome, metadata)
        result = ProblemResult.from_solution(outcome, self.task.grade_text, metadata)
        record = tree_record(outcome)
        record["strategy"] = strategy_settings(self.solver.strategy)
        if self.rounds is not None:
            record["allocated"] = self._allocated[problem.id]
        self._output.replace(f"{TREES}/{safe_file_name(problem.id)}.json", format_json(record))
        page = tree_page(record, result, index=f"../{INDEX}")
        self._output.replace(f"{PAGES}/{safe_file_name(problem.id)}.html", page.encode())
        return result


def _is_solved(future: Future[Solution]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def check_saved_rows(folder: Path, problems: Sequence[Problem], run_metadata: Mapping[str, object]) -> None:
    """Checks the rows in the folder of a run before its models load; reads only.

    Raises: ValueError naming a broken row, one of other settings, or one of another question; OutputError.
    """
    results = ResultFile(folder / RESULTS).read_results()
    require_rows_of_run(results.values(), run_metadata, folder)
    require_same_questions(results, problems)


def require_same_questions(results: Mapping[str, ProblemResult], problems: Iterable[Problem]) -> None:
    """Raises ValueError naming the first problem whose row answers another question: the data has changed since.

    >>> then, now = ProblemResult(id="p", question="What is 1+1?"), Problem(id="p", question="What is 1+2?")
    >>> require_same_questions({"p": then}, [now])
    Traceback (most recent call last):
    ValueError: the question of problem p is not that of its row; the data changed, give the run another folder
    """
    for problem in problems:
        row = results.get(problem.id)
        if row is not None and (row.question, row.gold) != (problem.question, problem.answer):
            field = "question" if row.question != problem.question else "gold answer"
            changed = f"the {field} of problem {problem.id} is not that of its row"
            raise ValueError(f"{changed}; the data changed, give the run another folder")


def strategy_settings(strategy: Strategy) -> dict[str, object]:
    """Returns a strategy's class (`_target_`) and settings as plain data."""
    kind = type(strategy)
    settings: dict[str, object] = asdict(strategy) if is_dataclass(strategy) else {}
    return {"_target_": canonical_name(f"{kind.__module__}.{kind.__qualname__}"), "select": strategy.select, **settings}


def tree_record(solution: Solution) -> TreeRecord:
    """Returns a whole search as plain data: the question, the explored tree, the decisions, the chosen answer."""
    result = solution.result
    tree = result.tree.to_dict()
    thoughts: dict[int, int] = {}
    for leaf in result.tree.leaf_nodes():
        context = result.tree.find_context(leaf)
        if context is not None and context.purpose == "notes":
            continue  # they are written behind the thought
        thoughts |= solution.reader.measure_thought(result.tree, leaf)
    record: TreeRecord = {
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
    if "contexts" in tree:
        record["contexts"] = tree["contexts"]
    if thoughts:
        record["thoughts"] = {str(node): length for node, length in sorted(thoughts.items())}
    return record

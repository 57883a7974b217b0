"""Results that cannot be saved end a run at once and loudly; what was saved stays."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from reason.grading.grade import Grade
from reason.problem import Problem, Solution
from reason.runs.json_files import safe_file_name
from reason.runs.log_file import LogFile
from reason.runs.output_folder import OutputError
from reason.runs.run import TaskRun
from reason.tasks.base import Task
from tests.support.toy_search import ToyEngine
from tests.support.toy_server import wait_until
from tests.support.toy_solver import toy_solver

PROBLEMS = [Problem(id=f"p{i}", question=f"What is {i}?", answer="1") for i in range(12)]


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def link_trees(folder: Path) -> None:
    (folder / "trees").rename(folder.parent / "elsewhere")
    (folder / "trees").symlink_to(folder.parent / "elsewhere")


def link_results(folder: Path) -> None:
    (folder / "results.jsonl").rename(folder.parent / "elsewhere.jsonl")
    (folder / "results.jsonl").symlink_to(folder.parent / "elsewhere.jsonl")


def delete_results(folder: Path) -> None:
    (folder / "results.jsonl").unlink()


@pytest.mark.parametrize("attack", [remove, replace_by_file, link_trees, link_results, delete_results])
def test_run_ends_with_the_first_result_that_cannot_be_saved(attack: Callable[[Path], None], tmp_path: Path) -> None:
    engine = ToyEngine()
    with toy_solver(engine=engine, concurrency=1) as solver:
        run = TaskRun(solver, Task("toy", PROBLEMS), tmp_path / "run", run_metadata={"task": "toy"})
        results = run.solve_missing()
        next(results)
        attack(tmp_path / "run")
        with pytest.raises(OutputError, match=r"; 1 of 12 problems are saved, and the run ends here$") as error:
            list(results)
        assert "\n" not in str(error.value)
        assert set(run.results) == {"p0"}
    for outside in (tmp_path / "elsewhere.jsonl", tmp_path / "elsewhere"):
        if outside.is_file():
            assert len(outside.read_text().splitlines()) == 1
        elif outside.is_dir():
            assert len(list(outside.iterdir())) == 1


def test_disk_that_fills_up_leaves_the_saved_rows_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_solver(concurrency=1) as solver:
        run = TaskRun(solver, Task("toy", PROBLEMS), tmp_path / "run", run_metadata={"task": "toy"})
        results = run.solve_missing()
        for _ in range(3):
            next(results)
        before = run.file.path.read_bytes()

        def fail(descriptor: int) -> None:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OutputError, match="No space left on device"):
            list(results)
        with pytest.raises(OutputError, match="No space left on device"):
            run.finish_run()
        monkeypatch.undo()
        assert run.file.path.read_bytes() == before
        again = TaskRun(solver, Task("toy", PROBLEMS), tmp_path / "run", run_metadata={"task": "toy"})
        assert (again.num_resumed, len(list(again.solve_missing()))) == (3, 9)


def test_rows_that_were_saved_and_are_gone_are_told_at_the_end(tmp_path: Path) -> None:
    with toy_solver() as solver:
        run = TaskRun(solver, Task("toy", PROBLEMS), tmp_path / "run", run_metadata={"task": "toy"})
        list(run.solve_missing())
        run.file.path.write_bytes(run.file.path.read_bytes().splitlines(keepends=True)[0])
        with pytest.raises(OutputError, match="has lost 11 of the rows that were saved"):
            run.finish_run()
        run.file.path.unlink()
        with pytest.raises(OutputError, match=r"No such file|has vanished"):
            run.finish_run()


def test_lower_limit_keeps_the_other_rows_on_disk(tmp_path: Path) -> None:
    with toy_solver() as solver:
        for limit, shown in ((None, 12), (2, 2), (None, 12)):
            run = TaskRun(solver, Task("toy", PROBLEMS), tmp_path / "run", run_metadata={"task": "toy"}, limit=limit)
            list(run.solve_missing())
            assert len(run.finish_run()) == shown
            assert len(run.file.path.read_text().splitlines()) == 12


def test_problem_ids_of_any_text_have_files_of_their_own_inside_the_folder(tmp_path: Path) -> None:
    ids = ["..", ".", "", "/etc/passwd", "a\0b", "A1", "a1", "x" * 5000, "a\nb", "CON", "-rf", "é", "e\u0301"]
    names = [safe_file_name(problem_id) for problem_id in ids]
    assert len({name.lower() for name in names}) == len(ids)
    problems = [Problem(id=problem_id, question="What is 1?") for problem_id in ids]
    with toy_solver() as solver:
        run = TaskRun(solver, Task("toy", problems), tmp_path / "run", run_metadata={"task": "toy"})
        assert all(result.error is None for result in run.solve_missing())
        assert [result.id for result in run.finish_run()] == ids
    assert sorted(file.stem for file in (tmp_path / "run" / "trees").iterdir()) == sorted(names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_log_that_cannot_be_written_is_told_once_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.log").symlink_to(tmp_path / "elsewhere")
    handler = LogFile(tmp_path / "run.log", delay=True)
    for number in range(3):
        handler.emit(logging.makeLogRecord({"msg": json.dumps(number)}))
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "cannot write the log" in errors
    assert "is a symbolic link" in errors
    assert not (tmp_path / "elsewhere").exists()


def test_problems_that_were_solved_when_a_run_is_interrupted_are_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class SlowlyGraded(Task):
        def grade_text(self, problem: Problem, text: str) -> Grade:
            wait_until(lambda: len(solved) >= 3)
            return super().grade_text(problem, text)

    solved: list[Future[Solution]] = []
    with toy_solver(concurrency=4) as solver, caplog.at_level(logging.WARNING):
        run = TaskRun(solver, SlowlyGraded("toy", PROBLEMS), tmp_path, run_metadata={})
        submit = solver.submit

        def submit_counted(problem: Problem) -> Future[Solution]:
            future = submit(problem)
            future.add_done_callback(lambda done: None if done.cancelled() else solved.append(done))
            return future

        solver.submit = submit_counted  # type: ignore[method-assign,assignment]
        outcomes = run.solve_missing()
        next(outcomes)
        with pytest.raises(KeyboardInterrupt):
            outcomes.throw(KeyboardInterrupt())
        rows = run.finish_run()
    assert len(rows) == len(solved) >= 3
    assert "more problems that are solved" in caplog.text

"""A run writes every finished problem to disk, and resumes to the same result."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from decoding.core import Generation, GenerationRequest
from reason.config.compose import compose_settings
from reason.problem import Problem
from reason.runs.json_files import safe_file_name
from reason.runs.present import format_heading, print_solution, print_summary
from reason.runs.progress import RunProgress, ThroughputMeter, track
from reason.runs.result import UNSTABLE_USAGE_FIELDS, ProblemResult, ResultFile
from reason.runs.run import TaskRun
from reason.runs.summary import summarise_results
from reason.settings.validate import validate_settings
from reason.tasks.base import Task
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget
from search.tree import SearchTree
from tests.support.lossy_settings import LOSSY
from tests.support.paths import GOLDEN
from tests.support.toy_search import ToyEngine
from tests.support.toy_solver import toy_solver

METADATA = {"task": "toy", "seed": 0}


def make_task(count: int = 8) -> Task:
    problems = [Problem(id=f"toy/{i}", question=f"What is {i}?", answer=str(i % 3)) for i in range(count)]
    return Task("toy", problems)


def run_task(folder: Path, *, stop_after: int | None = None, **more: Any) -> tuple[TaskRun, list[ProblemResult]]:
    with toy_solver(**more) as one:
        run = TaskRun(one, make_task(), folder, run_metadata=METADATA)
        for number, _ in enumerate(run.solve_missing(), 1):
            if number == stop_after:
                break
        return run, run.finish_run()


def stable(results: Sequence[ProblemResult]) -> list[ProblemResult]:
    """Returns the results without the fields that depend on time."""
    unstable = dict.fromkeys(UNSTABLE_USAGE_FIELDS, 0)
    return [replace(result, usage=replace(result.usage, **unstable)) for result in results]


def test_result_row_holds_grade_samples_usage_and_metadata(tmp_path: Path) -> None:
    _, rows = run_task(tmp_path)
    for row in rows:
        assert row.gold == str(int(row.id[4:]) % 3)
        assert row.grade.value == ("right" if row.answer == row.gold else "wrong")
        assert len(row.samples) == 4
        assert max(sample.score or 0.0 for sample in row.samples if sample.answer) == row.score
        assert row.usage.tokens == sum(sample.tokens for sample in row.samples)
        assert (row.error, row.stopped, row.metadata["task"], row.metadata["seed"]) == (None, "done", "toy", 0)


def test_saved_tree_equals_the_tree_of_the_search(tmp_path: Path) -> None:
    _, rows = run_task(tmp_path)
    for row in rows:
        saved = json.loads((tmp_path / "trees" / f"{safe_file_name(row.id)}.json").read_text())
        tree = SearchTree.from_dict(saved)
        tree.assert_invariants()
        assert tree.path_text(saved["best"]) == row.text
        assert [c["answer"] for c in saved["candidates"]] == [s.answer for s in row.samples]


def test_every_problem_has_a_page_and_the_index_links_to_it(tmp_path: Path) -> None:
    run, rows = run_task(tmp_path)
    listed = run.start_page.read_text(encoding="utf-8")
    for row in rows:
        page = f"pages/{safe_file_name(row.id)}.html"
        assert page in listed
        assert "../index.html" in (tmp_path / page).read_text(encoding="utf-8")


def test_index_page_of_a_run_under_way_says_so_and_loads_itself_again(tmp_path: Path) -> None:
    with toy_solver() as one:
        run = TaskRun(one, make_task(), tmp_path, run_metadata=METADATA)
        solved = run.solve_missing()
        next(solved)
        page = (tmp_path / "index.html").read_text()
        assert '"isRunning":true' in page
        assert '["state","running, 1 of 8 problems are done"]' in page
        assert len(list(solved)) == 7
        run.finish_run()
    page = (tmp_path / "index.html").read_text()
    assert '"isRunning":false' in page
    assert "problems are done" not in page


def test_start_page_of_a_single_problem_is_its_tree_page(tmp_path: Path) -> None:
    with toy_solver() as one:
        run = TaskRun(one, make_task(1), tmp_path, run_metadata=METADATA)
        list(run.solve_missing())
        run.finish_run()
    assert run.start_page.name == f"{safe_file_name('toy/0')}.html"
    assert run.start_page.exists()


def test_result_row_has_the_kv_of_its_search_and_the_tree_its_selections(tmp_path: Path) -> None:
    _, rows = run_task(tmp_path, strategy=Rebase(n=4))
    for row in rows:
        saved = json.loads((tmp_path / "trees" / f"{safe_file_name(row.id)}.json").read_text())
        assert saved["strategy"]["_target_"] == "search.strategies.rebase.Rebase"
        decisions = saved["selections"]
        assert row.kv.steps == len(decisions) or not decisions
        for decision in decisions:
            assert decision["kept_tokens"] <= decision["kv_tokens"]
    assert any(row.kv.kept_tokens > 0 for row in rows)


def test_resumed_run_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    _, unbroken = run_task(tmp_path / "unbroken")
    stopped, some = run_task(tmp_path / "broken", stop_after=3, concurrency=2)
    assert 3 <= len(some) < len(unbroken)
    with stopped.file.path.open("a") as file:
        file.write('{"id": "toy/7", "half')
    resumed, rows = run_task(tmp_path / "broken")
    assert resumed.num_resumed == len(some)
    assert stable(rows) == stable(unbroken)
    assert [row.id for row in rows] == [f"toy/{i}" for i in range(8)]


class Moody(ToyEngine):
    """A strategy that raises on one problem."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        if b"What is 5?" in bytes(requests[0].prefix):
            raise RuntimeError("out of luck")
        return await super().generate(requests)


def test_failed_problem_is_recorded_and_solved_again_on_resume(tmp_path: Path) -> None:
    _, unbroken = run_task(tmp_path / "unbroken")
    _, rows = run_task(tmp_path / "run", engine=Moody())
    assert [row.id for row in rows if row.error] == ["toy/5"]
    assert rows[5].error == "RuntimeError: out of luck"
    assert summarise_results(rows)["errors"] == 1
    again, rows = run_task(tmp_path / "run")
    assert again.num_resumed == 7
    assert stable(rows) == stable(unbroken)


def test_result_row_is_on_disk_before_it_is_returned(tmp_path: Path) -> None:
    with toy_solver() as one:
        run = TaskRun(one, make_task(), tmp_path, run_metadata=METADATA)
        for number, row in enumerate(run.solve_missing(), 1):
            rows = ResultFile(tmp_path / "results.jsonl").read_results()
            assert len(rows) == number
            assert rows[row.id] == row


def test_problem_limit_takes_the_first_problems_and_may_be_raised(tmp_path: Path) -> None:
    with toy_solver() as one:
        run = TaskRun(one, make_task(), tmp_path, run_metadata=METADATA, limit=3)
        assert len(list(run.solve_missing())) == 3
        run = TaskRun(one, make_task(), tmp_path, run_metadata=METADATA, limit=5)
        assert len(list(run.solve_missing())) == 2
        assert [row.id for row in run.finish_run()] == [f"toy/{i}" for i in range(5)]


def test_run_summary_equals_sums_over_rows(tmp_path: Path) -> None:
    _, rows = run_task(tmp_path)
    summary = summarise_results(rows)
    right = sum(row.grade.value == "right" for row in rows)
    assert summary["metrics"]["chosen"]["value"] == pytest.approx(right / 8)
    assert {"pass@1", "avg@4", "pass@4", "maj@4", "weighted@4", "best@4"} < summary["metrics"].keys()
    assert summary["metrics"]["best@4"] == summary["metrics"]["chosen"]  # the rule best-of-N chose by
    assert summary["usage"]["tokens"] == sum(row.usage.tokens for row in rows)
    assert sum(summary["grades"].values()) == summary["problems"] == 8


def test_run_summary_without_gold_answers_has_no_metrics(tmp_path: Path) -> None:
    with toy_solver() as one:
        run = TaskRun(one, Task("question", [Problem.from_question("What is 3?")]), tmp_path, run_metadata=METADATA)
        list(run.solve_missing())
        rows = run.finish_run()
    assert rows[0].grade.value == "ungraded"
    assert summarise_results(rows)["metrics"] == {}


def test_run_summary_without_rows_has_no_metrics() -> None:
    assert summarise_results([])["metrics"] == {}


def test_run_summary_counts_problems_out_of_budget(tmp_path: Path) -> None:
    _, rows = run_task(tmp_path, budget=Budget(tokens=60))
    assert summarise_results(rows)["out_of_budget"] == 8
    assert all(row.usage.tokens <= 60 for row in rows)


def test_run_summary_counts_solutions_without_a_score(tmp_path: Path) -> None:
    _, rows = run_task(tmp_path)
    assert summarise_results(rows)["unscored"] == 0
    sample = rows[0].samples[0]
    partly = replace(rows[0], samples=(replace(sample, score=None), replace(sample, score=0.5)))
    assert summarise_results([partly])["unscored"] == 1
    without_scorer = replace(rows[0], samples=(replace(sample, score=None),))
    assert summarise_results([without_scorer])["unscored"] == 0


def shown(folder: Path, *, terminal: bool) -> str:
    console = Console(record=True, force_terminal=terminal, width=200, file=(folder / "screen").open("w"))
    with toy_solver(BestOfN(n=2), engine=Moody()) as one:
        run = TaskRun(one, make_task(), folder, run_metadata=METADATA)
        gauge = ThroughputMeter(one.engine)
        rows = list(track(run.solve_missing(), total=8, before=[], meter=gauge, console=console))
        names = {"model": "m", "search": "s", "scorer": "p", "engine": "e", "speculation": "off", "task": "toy"}
        console.print(format_heading(names, 8))
        print_solution(rows[0], console)
        totals = {"stopped": "done", "total": 9, "resumed": 1, "seconds": 2.0, "folder": "here", "page": "p.html"}
        print_summary(summarise_results(rows) | totals | {"engine_totals": gauge.read_totals()}, console)
    return console.export_text()


@pytest.mark.parametrize("terminal", [True, False])
def test_run_display_names_failures_metrics_and_the_results_folder(tmp_path: Path, terminal: bool) -> None:
    text = shown(tmp_path, terminal=terminal)
    for expected in (
        "failed, RuntimeError: out of luck",
        "chosen",
        "maj@2",
        "±",
        "1 not reached",
        "results in here",
        "p.html",
    ):
        assert expected in text
    if not terminal:
        assert "[8/8]" in text
        assert "accuracy" in text
        assert "0 s left" in text


def test_time_left_is_known_from_the_first_result_on() -> None:
    progress = RunProgress(100, lambda _: 1, before=[ProblemResult(id="0", question="?")])
    assert progress.describe_left(60) == ""
    progress.add(ProblemResult(id="1", question="?"))
    assert progress.describe_left(10) == "16 min left"  # 98 problems, 10 seconds each


def test_result_row_equals_the_golden_row() -> None:
    """Regenerate with `REGENERATE_GOLDEN=1 pytest tests/reason/runs/test_run.py`, and read the difference."""
    file = GOLDEN / "result_row.json"
    one_task = make_task(4)
    with toy_solver(seed=7) as one:
        result = ProblemResult.from_solution(one.solve(one_task[3]), one_task.grade_text, METADATA)
    row = stable([result])[0].to_json() | {"accepted_length": None}
    text = json.dumps(row, indent=1) + "\n"
    if os.environ.get("REGENERATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
    assert ProblemResult.from_json(json.loads(text)) == stable([result])[0]


def test_rows_of_the_last_release_are_read() -> None:
    row = json.loads((GOLDEN / "result_row.json").read_text(encoding="utf-8"))
    usage = row.pop("usage")
    old = {"draft_tokens" if name == "small_tokens" else name: value for name, value in usage.items()}
    old["draft_forwards"] = old.pop("small_forwards")
    del row["shape"]
    old |= {"draft_tokens": 5, "round_seconds": 1.0, "plain_seconds": 2.0}
    result = ProblemResult.from_json({**row, "spent": old, "speedup": 2.0})
    assert result.usage.small_tokens == 5
    assert result.usage.tokens == usage["tokens"]
    assert result.metadata == METADATA
    assert not {"spent", "speedup"} & result.to_json().keys()


@pytest.mark.parametrize("setting", LOSSY)
def test_lossy_setting_is_in_heading_row_log_summary_and_pages(setting: str, tmp_path: Path) -> None:
    metadata = validate_settings(*compose_settings([setting])).run_metadata(make_task(2), None)
    assert metadata["lossy"] == setting
    with toy_solver() as one:
        run = TaskRun(one, make_task(2), tmp_path, run_metadata=metadata)
        results = list(run.solve_missing())
        run.finish_run()
    assert format_heading(metadata, 2).endswith(f"; lossy: {setting}")
    assert all(result.lossy == result.to_json()["lossy"] == setting for result in results)
    for page in (tmp_path / "index.html", tmp_path / "pages" / f"{safe_file_name('toy/0')}.html"):
        assert f'["lossy","{setting}"]' in page.read_text(encoding="utf-8")
    console = Console(record=True, width=200, file=(tmp_path / "screen").open("w"))
    totals = {"total": 2, "resumed": 0, "seconds": 2.0, "folder": "here", "page": "p.html", "engine_totals": {}}
    print_summary(summarise_results(results) | totals | metadata, console)
    assert f"lossy: {setting}" in console.export_text()

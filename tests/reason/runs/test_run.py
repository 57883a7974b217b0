"""A run leaves every finished problem on disk, and goes on where it was stopped to the same end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from decoding.core import Generation, GenerationRequest
from reason.problem import Problem
from reason.runs.present import heading, show_solution, show_table
from reason.runs.progress import Gauge, watched
from reason.runs.result import CHANGING
from reason.runs.result_file import ResultFile, Row, file_name
from reason.runs.run import Run
from reason.runs.summary import summary_of
from reason.tasks.base import Task
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import Budget
from search.tree import SearchTree
from tests.reason.test_solver import solver
from tests.support.toy_search import ToyEngine

STAMP = {"task": "toy", "seed": 0}


def task(count: int = 8) -> Task:
    problems = [Problem(id=f"toy/{i}", question=f"What is {i}?", answer=str(i % 3)) for i in range(count)]
    return Task("toy", problems)


def go(folder: Path, *, stop_after: int | None = None, **more: Any) -> tuple[Run, list[Row]]:
    with solver(**more) as one:
        run = Run(one, task(), folder, stamp=STAMP)
        for number, _ in enumerate(run.go(), 1):
            if number == stop_after:
                break
        return run, run.finish()


def steady(rows: Sequence[Row]) -> list[Row]:
    """Without what depends on time."""
    kept = [row | {"spent": {k: v for k, v in row["spent"].items() if k not in CHANGING}} for row in rows]
    return [{k: v for k, v in row.items() if k not in ("accepted_length", "speedup")} for row in kept]


def test_a_row_says_everything_about_its_problem(tmp_path: Path) -> None:
    _, rows = go(tmp_path)
    for row in rows:
        assert row["gold"] == str(int(row["id"][4:]) % 3)
        assert row["grade"] == ("right" if row["answer"] == row["gold"] else "wrong")
        assert len(row["samples"]) == 4
        assert max(sample["score"] for sample in row["samples"] if sample["answer"]) == row["score"]
        assert row["spent"]["tokens"] == sum(sample["tokens"] for sample in row["samples"])
        assert (row["error"], row["stopped"], row["task"], row["seed"]) == (None, "done", "toy", 0)


def test_the_tree_on_disk_is_the_tree(tmp_path: Path) -> None:
    _, rows = go(tmp_path)
    for row in rows:
        saved = json.loads((tmp_path / "trees" / f"{file_name(row['id'])}.json").read_text())
        tree = SearchTree.from_dict(saved)
        tree.check()
        assert tree.text(saved["best"]) == row["text"]
        assert [c["answer"] for c in saved["candidates"]] == [s["answer"] for s in row["samples"]]


def test_every_problem_has_a_page_and_the_list_leads_to_it(tmp_path: Path) -> None:
    run, rows = go(tmp_path)
    listed = run.page.read_text(encoding="utf-8")
    for row in rows:
        page = f"pages/{file_name(row['id'])}.html"
        assert page in listed
        assert "../index.html" in (tmp_path / page).read_text(encoding="utf-8")


def test_a_single_problem_is_its_own_page(tmp_path: Path) -> None:
    with solver() as one:
        run = Run(one, task(1), tmp_path, stamp=STAMP)
        list(run.go())
        run.finish()
    assert run.page.name == f"{file_name('toy/0')}.html"
    assert run.page.exists()


def test_a_row_has_the_kv_its_search_pinned_and_the_tree_its_decisions(tmp_path: Path) -> None:
    _, rows = go(tmp_path, strategy=Rebase(n=4))
    for row in rows:
        saved = json.loads((tmp_path / "trees" / f"{file_name(row['id'])}.json").read_text())
        assert saved["strategy"]["_target_"] == "search.strategies.rebase.Rebase"
        decisions = saved["selections"]
        assert row["kv"]["steps"] == len(decisions) or not decisions
        for decision in decisions:
            assert decision["kept_tokens"] <= decision["kv_tokens"]
    assert any(row["kv"]["kept_tokens"] > 0 for row in rows)


def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path: Path) -> None:
    _, unbroken = go(tmp_path / "unbroken")
    stopped, some = go(tmp_path / "broken", stop_after=3, concurrency=2)
    assert 3 <= len(some) < len(unbroken)
    with stopped._file.path.open("a") as file:
        file.write('{"id": "toy/7", "half')
    resumed, rows = go(tmp_path / "broken")
    assert resumed.resumed == len(some)
    assert steady(rows) == steady(unbroken)
    assert [row["id"] for row in rows] == [f"toy/{i}" for i in range(8)]


class Moody(ToyEngine):
    """Breaks on one problem."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        if b"What is 5?" in bytes(requests[0].prefix):
            raise RuntimeError("out of luck")
        return await super().generate(requests)


def test_a_failing_problem_is_recorded_and_tried_again_on_resume(tmp_path: Path) -> None:
    _, unbroken = go(tmp_path / "unbroken")
    _, rows = go(tmp_path / "run", engine=Moody())
    assert [row["id"] for row in rows if row["error"]] == ["toy/5"]
    assert rows[5]["error"] == "RuntimeError: out of luck"
    assert summary_of(rows)["errors"] == 1
    again, rows = go(tmp_path / "run")
    assert again.resumed == 7
    assert steady(rows) == steady(unbroken)


def test_every_row_is_on_disk_when_it_is_shown(tmp_path: Path) -> None:
    with solver() as one:
        run = Run(one, task(), tmp_path, stamp=STAMP)
        for number, row in enumerate(run.go(), 1):
            rows = ResultFile(tmp_path / "results.jsonl").read()
            assert len(rows) == number
            assert rows[row["id"]] == row


def test_a_limit_takes_the_first_and_may_be_raised(tmp_path: Path) -> None:
    with solver() as one:
        run = Run(one, task(), tmp_path, stamp=STAMP, limit=3)
        assert len(list(run.go())) == 3
        run = Run(one, task(), tmp_path, stamp=STAMP, limit=5)
        assert len(list(run.go())) == 2
        assert [row["id"] for row in run.finish()] == [f"toy/{i}" for i in range(5)]


def test_the_summary_adds_up(tmp_path: Path) -> None:
    _, rows = go(tmp_path)
    summary = summary_of(rows)
    right = sum(row["grade"] == "right" for row in rows)
    assert summary["metrics"]["chosen"]["value"] == pytest.approx(right / 8)
    assert {"pass@1", "avg@4", "pass@4", "maj@4", "weighted@4", "best@4"} < summary["metrics"].keys()
    assert summary["metrics"]["best@4"] == summary["metrics"]["chosen"]  # the rule best-of-N chose by
    assert summary["spent"]["tokens"] == sum(row["spent"]["tokens"] for row in rows)
    assert sum(summary["grades"].values()) == summary["problems"] == 8


def test_without_gold_answers_nothing_is_claimed(tmp_path: Path) -> None:
    with solver() as one:
        run = Run(one, Task("question", [Problem.ask("What is 3?")]), tmp_path, stamp=STAMP)
        list(run.go())
        rows = run.finish()
    assert rows[0]["grade"] == "ungraded"
    assert summary_of(rows)["metrics"] == {}


def test_a_run_of_nothing_has_a_summary() -> None:
    assert summary_of([])["metrics"] == {}


def test_out_of_budget_is_counted(tmp_path: Path) -> None:
    _, rows = go(tmp_path, budget=Budget(tokens=60))
    assert summary_of(rows)["out_of_budget"] == 8
    assert all(row["spent"]["tokens"] <= 60 for row in rows)


def shown(folder: Path, *, terminal: bool) -> str:
    console = Console(record=True, force_terminal=terminal, width=200, file=(folder / "screen").open("w"))
    with solver(BestOfN(n=2), engine=Moody()) as one:
        run = Run(one, task(), folder, stamp=STAMP)
        gauge = Gauge(one.engine)
        rows = list(watched(run.go(), total=8, before=[], gauge=gauge, console=console))
        names = {"model": "m", "search": "s", "scorer": "p", "engine": "e", "speculation": "off", "task": "toy"}
        console.print(heading(names, 8))
        show_solution(rows[0], console)
        totals = {"stopped": "done", "total": 9, "resumed": 1, "seconds": 2.0, "folder": "here", "page": "p.html"}
        show_table(summary_of(rows) | totals | {"engine_totals": gauge.read()}, console)
    return console.export_text()


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_shown_names_failures_metrics_and_where_results_are(tmp_path: Path, terminal: bool) -> None:
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

"""Rows, the summary and the pages of a model that thinks."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from decoding.core import SamplingParams, Tokens
from reason.problem import Problem
from reason.runs.pages import tree_page
from reason.runs.present import print_solution, print_summary
from reason.runs.result import ProblemResult, SampleResult
from reason.runs.run import TaskRun, tree_record
from reason.runs.summary import summarise_results
from reason.tasks.base import Task
from reason.thinking import ThinkingFormat
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from tests.support.browser import Opener
from tests.support.toy_search import ToyEngine
from tests.support.toy_solver import toy_solver

FORM = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>", answer_tokens=0)
THOUGHT, TEXT = "Maybe \\boxed{4} é.\n\nNo.\n\n", "So\n\nThe answer is \\boxed{7}."
WHOLE = f"<think>{THOUGHT}</think>{TEXT}"
TOKENS = len(f"<think>{THOUGHT}</think>")


def write(seed: int, prefix: Tokens) -> str:
    del seed
    return WHOLE[len(prefix) - len("Question: What is 3+4?\n") :]


def run_task(folder: Path, max_tokens: int = 500, **more: Any) -> tuple[ProblemResult, dict[str, Any]]:
    strategy = BestOfN(n=4, sampling=SamplingParams(max_tokens=max_tokens))
    arguments: dict[str, Any] = {"strategy": strategy, "engine": ToyEngine(write), "thinking": FORM} | more
    with toy_solver(**arguments) as solver:
        task = Task("toy", [Problem(id="p", question="What is 3+4?", answer="7")])
        run = TaskRun(solver, task, folder, run_metadata={"task": "toy"})
        list(run.solve_missing())
        (row,) = run.finish_run()
    return row, summarise_results([row])


def printed(summary: dict[str, Any]) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    parts = {"engine_totals": {}, "seconds": 1.0, "total": 1, "resumed": 0, "folder": "f", "page": "p"}
    print_summary(summary | parts, console)
    return console.export_text()


def test_row_has_thought_and_text_apart(tmp_path: Path) -> None:
    row, summary = run_task(tmp_path)
    assert (row.answer, row.grade.value, row.thought, row.text) == ("7", "right", THOUGHT, TEXT)
    assert {(s.thought_tokens, s.is_thought_finished, s.grade) for s in row.samples} == {(TOKENS, True, "right")}
    saved = json.loads((tmp_path / "results.jsonl").read_text())
    assert (saved["thought"], saved["samples"][0]["thought_tokens"]) == (THOUGHT, TOKENS)
    assert ProblemResult.from_json(saved) == row
    assert (summary["solutions"], summary["cut"], summary["unfinished_thoughts"]) == (4, 0, 0)
    assert "cut" not in printed(summary)


def test_row_of_a_model_without_thoughts_has_none_of_the_keys(tmp_path: Path) -> None:
    row, _ = run_task(tmp_path, thinking=None)
    saved = row.to_json()
    assert "thought" not in saved
    assert "thought_tokens" not in saved["samples"][0]
    assert (row.text, row.samples[0].is_thought_finished) == (WHOLE, None)


def test_solutions_cut_inside_their_thought_are_counted_and_warned_of(tmp_path: Path) -> None:
    row, summary = run_task(tmp_path, max_tokens=30)
    assert (row.answer, row.text, row.grade.value) == (None, "", "no_answer")
    assert {(s.thought_tokens, s.is_thought_finished) for s in row.samples} == {(30, False)}
    assert (summary["solutions"], summary["cut"], summary["unfinished_thoughts"]) == (4, 4, 4)
    text = printed(summary)
    assert "4 of 4" in text
    assert "4 ended inside the thought" in text
    assert "raise search.sampling.max_tokens" in text


@pytest.mark.parametrize(("cut", "warns"), [(1, False), (2, True)])
def test_warning_needs_more_than_a_tenth(cut: int, warns: bool) -> None:
    done = SampleResult(node=0, answer="1", grade="right", score=None, finish="eos")
    ended = replace(done, answer=None, finish="length")
    row = ProblemResult(id="p", samples=(ended,) * cut + (done,) * (10 - cut))
    summary = summarise_results([row])
    assert summary["cut"] == cut
    assert ("ended at a limit without an answer" in printed(summary)) == warns


def test_only_solutions_that_hit_a_limit_are_cut() -> None:
    sample = SampleResult(node=0, answer=None, grade="no_answer", score=None)
    assert [replace(sample, finish=finish).is_cut for finish in ("eos", "stop", "length", None)] == [0, 0, 1, 1]
    assert not replace(sample, answer="7", finish="length").is_cut
    assert replace(sample, finish="eos", is_thought_finished=False).is_cut


def test_rows_of_earlier_releases_are_read() -> None:
    old = {"node": 0, "answer": "4", "grade": "right", "score": 0.5, "tokens": 3, "finish": "eos"}
    row = ProblemResult.from_json({"id": "p", "text": "x", "samples": [old]})
    assert (row.thought, row.samples[0].thought_tokens, row.samples[0].is_thought_finished) == ("", None, None)


def test_printed_solution_says_that_there_is_a_thought() -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    print_solution(ProblemResult(id="p", text="7", thought="hm"), console)
    assert "a thought of 2 characters" in console.export_text()


def test_page_folds_the_thought(visit: Opener) -> None:
    arguments: dict[str, Any] = {"strategy": Rebase(n=1), "engine": ToyEngine(write), "thinking": FORM}
    with toy_solver(**arguments) as solver:
        record = tree_record(solver.solve("What is 3+4?"))
    assert sorted(record["thoughts"].values(), reverse=True) == [len(f"<think>{THOUGHT}") - 5, 8, 5]
    page = visit(tree_page(record, None))
    folded = page.locator("#before details.thought")
    assert folded.count() == 1
    assert folded.locator("summary").inner_text() == "Thought, 2 steps"
    assert not folded.locator("button").first.is_visible()
    folded.locator("summary").click()
    folded.locator("button").first.click()
    assert page.locator("#text details.thought summary").is_visible()

"""The index page of a run: what was run, the numbers of the terminal, and answers that are not trusted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from reason.problem import Problem
from reason.runs import resume
from reason.runs.json_files import parse_json
from reason.runs.output_folder import OutputError
from reason.runs.pages import index_page
from reason.runs.present import print_solution, print_summary
from reason.runs.result import ProblemResult
from reason.runs.run import TaskRun
from reason.runs.summary import summarise_results
from reason.runs.summary_rows import summary_rows
from reason.tasks.base import Task
from tests.support.browser import Opener
from tests.support.search_records import NASTY, embedded, make_results
from tests.support.toy_solver import toy_solver

if TYPE_CHECKING:
    from playwright.sync_api import Page

ABOUT: dict[str, Any] = {
    "task": "toy", "model": "m", "model_path": "org/m", "search": "rebase", "scorer": "none", "router": "off",
    "seed": 3, "settings": {"search.n": 16}, "versions": {"reason": "0.2.0", "torch": "2.13.0"},
}  # fmt: skip
ENGINE = {
    "forwards": 93, "tokens_per_second": 1738.4, "accepted_length": 1.01, "cached": 0.9,
    "peak_kv_tokens": 1512, "peak_kv_tokens_unshared": 2727, "peak_kv_sharing": 1.8,
}  # fmt: skip


def make_summary(results: list[ProblemResult]) -> dict[str, Any]:
    known = {"engine_totals": ENGINE, "seconds": 1.277, "total": len(results), "resumed": 0, "stopped": "done"}
    return {**summarise_results(results), **known, "folder": "here", "page": "here/index.html"}


def test_index_page_shows_the_numbers_that_the_terminal_prints(visit: Opener) -> None:
    results = make_results(10)
    summary = make_summary(results)
    console = Console(record=True, width=200, file=io.StringIO())
    print_summary(summary, console)
    printed = console.export_text()
    page = visit(index_page(results, {}, ABOUT, summary))
    shown = page.locator("#totals").inner_text()
    for name, value, note in summary_rows(summary):
        line = next(line for line in printed.splitlines() if line.startswith(f"{name} "))
        assert value in line
        assert note in line
        assert f"{name}\n\n{value}" in shown or f"{name}\n{value}" in shown
    assert "1,512 tokens held at the peak" in shown


def test_index_page_says_what_was_run(visit: Opener) -> None:
    about = {**ABOUT, "started": "2026-11-23 18:34 UTC", "command": "python scripts/solve.py search=rebase"}
    summary = {**make_summary(make_results(3)), "stopped": "interrupted"}
    page = visit(index_page(make_results(3), {}, about, summary))
    facts = page.locator("#facts").inner_text()
    texts = ("2026-11-23 18:34 UTC", "python scripts/solve.py search=rebase", "16", "3", "m (org/m)", "interrupted")
    for text in (*texts, "reason 0.2.0, torch 2.13.0"):
        assert text in facts.splitlines()
    assert "router" not in facts  # it is off


def test_index_page_marks_and_filters_answers_that_are_not_trusted(visit: Opener) -> None:
    trusted = {"p/0": True, "p/1": False, "p/2": None}
    results = [ProblemResult(id=name, answer="7", is_trusted=value) for name, value in trusted.items()]
    page = visit(index_page(results, {}, ABOUT, make_summary(results)))
    texts = [page.locator(f'tr[data-id="{name}"]').inner_text() for name in trusted]
    assert ["not trusted" in text for text in texts] == [False, True, False]
    page.get_by_role("button", name="not trusted 1").click()
    assert page.get_by_role("status").inner_text() == "1 of 3 problems"
    assert page.locator("#totals").get_by_text("1 of 3").is_visible()  # the terminal's count


def test_index_page_of_a_run_knows_when_and_by_which_command_it_began(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    command = f"python scripts/solve.py 'question={NASTY[0]}'"
    resume.save_settings(folder, config={}, choices={}, about=ABOUT, command=command)
    started = parse_json((folder / "run.json").read_bytes())["started"]
    with toy_solver() as solver:
        run = TaskRun(solver, Task("toy", [Problem(id="p", question="What is 1?")]), folder, run_metadata=ABOUT)
        list(run.solve_missing())
        results = run.finish_run()
        assert ["started", started] in embedded((folder / "index.html").read_text())["facts"]
        run.write_index(results, make_summary(results) | {"seconds": 1234.5})
    page = embedded((folder / "index.html").read_text())
    assert ["command", command] in page["facts"]
    assert ["seconds", "1,234.5", "1,738 tokens/s"] in page["totals"]
    assert "p.html" in page["rows"][0]["href"]
    (folder / "run.json").write_text("[")
    with pytest.raises(OutputError, match=r"run\.json"):
        run.write_index(results)


def test_printed_votes_are_called_what_they_are() -> None:
    def printed(select: str | None, *pairs: tuple[str, float | None], votes: dict[str, float]) -> str:
        samples = [{"node": i, "answer": a, "grade": "ungraded", "score": s} for i, (a, s) in enumerate(pairs)]
        settings = {} if select is None else {"search.select": select}
        row = {"id": "p", "answer": "7", "votes": votes, "samples": samples, "settings": settings}
        console = Console(record=True, width=100, file=io.StringIO())
        print_solution(ProblemResult.from_json(row), console)
        return console.export_text().splitlines()[-1]

    pairs = (("7", 0.5), ("8", 0.25), ("8", 0.2))
    assert printed(None, *pairs, votes={"7": 0.5, "8": 0.25}) == "best score of each answer  7: 0.5, 8: 0.25"
    assert printed("weighted", *pairs, votes={"7": 0.5, "8": 0.45}).startswith("votes, as sums of scores  7")
    assert printed("majority", *pairs, votes={"7": 1.0, "8": 2.0}) == "votes  8: 2, 7: 1"
    assert printed("best", ("7", None), ("8", None), votes={"7": 1.0, "8": 1.0}) == "votes  7: 1, 8: 1"


def rewrite(page: Page, text: str) -> None:
    """Writes another text to the file that a tab shows, as a run does with its page."""
    Path(page.url.removeprefix("file://")).write_text(text, encoding="utf-8")


def test_page_of_a_run_under_way_shows_its_next_rows_by_itself(visit: Opener) -> None:
    results = make_results(5)
    page = visit(index_page(results[:2], {}, ABOUT, num_problems=5))
    assert "running, 2 of 5 problems are done" in page.locator("body").inner_text()
    rewrite(page, index_page(results[:4], {}, ABOUT, num_problems=5))
    page.get_by_text("running, 4 of 5 problems are done").wait_for()
    rewrite(page, index_page(results, {}, ABOUT))
    page.get_by_text("running, 4 of 5 problems are done").wait_for(state="detached")
    assert page.locator("tbody tr").count() == 5


def test_page_of_a_run_under_way_leaves_a_table_in_use_alone(visit: Opener) -> None:
    page = visit(index_page(make_results(3), {}, ABOUT, num_problems=5))
    page.locator("#filter").fill("aime/1")
    rewrite(page, index_page(make_results(4), {}, ABOUT, num_problems=5))
    page.wait_for_timeout(3500)
    assert "running, 3 of 5" in page.locator("body").inner_text()
    assert page.locator("#filter").input_value() == "aime/1"

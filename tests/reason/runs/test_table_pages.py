"""The index page of a run and the report over many runs, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reason.runs.gather import FoundRun, RunMeasurement
from reason.runs.metrics import PairedDifference
from reason.runs.pages import index_page
from reason.runs.pages.report import report_page
from tests.support.browser import Opener
from tests.support.search_records import make_results

if TYPE_CHECKING:
    from playwright.sync_api import Page


def ids(page: Page) -> list[str]:
    lines = page.locator("tbody tr:visible")
    return [str(line.get_attribute("data-id")) for line in lines.all()]


def test_index_page_sorts_filters_and_links(visit: Opener) -> None:
    rows = make_results(40)
    page = visit(index_page(rows, {"aime/3": "trees/3.html"}, {"task": "aime", "search": "best_of_n"}))
    assert ids(page) == [row.id for row in rows]
    head = page.get_by_role("columnheader", name="tokens")
    by_tokens = [row.id for row in sorted(rows, key=lambda row: -row.usage.tokens)]
    for expected, sort in ((by_tokens, "descending"), (by_tokens[::-1], "ascending"), (ids(page), "none")):
        head.get_by_role("button").click()
        assert (ids(page), head.get_attribute("aria-sort")) == (expected, sort)
    page.get_by_role("button", name="no answer").click()
    assert ids(page) == [row.id for row in rows if row.grade.value == "no_answer"]
    page.get_by_role("button", name="no answer").click()
    page.get_by_role("searchbox").fill("aime/3")
    assert ids(page) == [row.id for row in rows if "aime/3" in row.id]
    assert page.get_by_role("status").inner_text() == "11 of 40 problems"
    links = page.locator("tbody").get_by_role("link")
    assert (links.count(), links.get_attribute("href")) == (1, "trees/3.html")


def test_index_page_holds_a_thousand_rows(visit: Opener) -> None:
    page = visit(index_page(make_results(1000), {}, {}))
    page.get_by_role("columnheader", name="seconds").get_by_role("button").click()
    page.get_by_role("searchbox").fill("out of pages")
    assert page.get_by_role("status").inner_text() == "20 of 1000 problems"


def test_report_page_draws_every_run_against_each_cost_with_a_link(visit: Opener, tmp_path: Path) -> None:
    def make_run(i: int, accuracy: float, cost: float) -> FoundRun:
        interval = PairedDifference(accuracy, accuracy - 0.05, accuracy + 0.05, 50)
        costs = {"tokens": cost, "forwards": 900 - cost, "seconds": 2.0, "kv": cost / 2}
        measured = RunMeasurement(interval, costs, problems=50, failed=0)
        return FoundRun(
            tmp_path / str(i), f"search.n={i}", {}, "done", measured, None, tmp_path / str(i) / "index.html"
        )

    runs = [make_run(0, 0.4, 100), make_run(1, 0.6, 400), make_run(2, 0.5, 500)]
    broken = FoundRun(tmp_path / "3", "search=<b>ets</b>", {}, "unfinished", None, "OSError: gone", None)
    page = visit(report_page([*runs, broken], "Four runs", tmp_path))
    points = page.locator("#plot a")
    hrefs = [points.nth(i).get_attribute("href") for i in range(points.count())]
    assert hrefs == ["2/index.html", "0/index.html", "1/index.html"]  # those of the front above the beaten one
    assert page.locator("#plot .mark.best").count() == 2
    page.get_by_role("group", name="Cost").get_by_role("button", name="forwards").click()
    best = page.locator("#plot a:has(.mark.best)")
    assert [best.nth(i).get_attribute("data-place") for i in range(best.count())] == ["1", "2"]
    rows = page.get_by_role("row")
    assert "OSError: gone" in rows.nth(4).inner_text()
    assert "search=<b>ets</b>" in rows.nth(4).inner_text()
    page.get_by_role("button", name="accuracy").click()
    assert rows.nth(1).inner_text().startswith("search.n=1")

"""Pages without a mouse and on paper: the first key leads to tree or table, links open, prints have no tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reason.runs.compare import compare_runs
from reason.runs.gather import find_runs
from reason.runs.pages import index_page, tree_page
from reason.runs.pages.compare import compare_page
from reason.runs.pages.report import report_page
from tests.support.browser import Opener, tree_shown
from tests.support.run_folders import make_run
from tests.support.search_records import make_record, make_results, result_of

if TYPE_CHECKING:
    from playwright.sync_api import Page


def write_pages(folder: Path) -> dict[str, str]:
    """Returns one page of each kind."""
    homes = [make_run(folder / str(n), n, [True, False, n > 4]) for n in (4, 8)]
    runs = find_runs(homes)
    record = make_record()
    return {
        "tree": tree_page(record, result_of(record), index="../index.html"),
        "index": index_page(make_results(8), {}, {}),
        "report": report_page(runs, "two runs", folder),
        "compare": compare_page(runs, compare_runs(runs), folder),
    }


def focused(page: Page) -> str:
    """Returns the id of the element that has the focus, or that the address leads to."""
    element_id: str = page.evaluate("() => document.activeElement.id || document.querySelector(':target')?.id || ''")
    return element_id


@pytest.mark.parametrize("kind", ["tree", "index", "report", "compare"])
def test_first_key_skips_what_stands_before_the_tree_or_the_table(visit: Opener, tmp_path: Path, kind: str) -> None:
    page = visit(write_pages(tmp_path)[kind], width=390)
    link = page.locator("a.skip")
    assert not shows(page, "a.skip")
    page.keyboard.press("Tab")
    assert link.evaluate("(element) => element === document.activeElement")
    assert shows(page, "a.skip")
    page.keyboard.press("Enter")
    assert focused(page) == ("tree" if kind == "tree" else "table")


def shows(page: Page, selector: str) -> bool:
    """Returns whether an element is inside the window."""
    box = page.locator(selector).bounding_box()
    return box is not None and box["y"] >= 0


def test_link_to_all_problems_opens_by_key(visit: Opener, tmp_path: Path) -> None:
    page = visit(write_pages(tmp_path)["tree"])
    page.evaluate("() => { window.opened = 0; document.getElementById('index').addEventListener('click', (event) => {"
                  " event.preventDefault(); window.opened += 1; }); }")  # fmt: skip
    page.locator("#index").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("window.opened") == 1


def test_screen_reader_hears_the_selected_step(visit: Opener, tmp_path: Path) -> None:
    page = visit(write_pages(tmp_path)["tree"])
    tree = page.get_by_role("tree")
    tree.focus()
    page.keyboard.press("Home")
    heard = set()
    for _ in range(3):
        assert tree_shown(page, "selected") is not None
        item = page.locator(f"#{tree.get_attribute('aria-activedescendant')}")
        assert (item.get_attribute("role"), item.get_attribute("aria-selected")) == ("treeitem", "true")
        heard.add(item.get_attribute("aria-label"))
        page.keyboard.press("ArrowDown")
    assert len(heard) == 3


@pytest.mark.parametrize("kind", ["index", "report", "compare"])
def test_print_has_the_table_without_tools(visit: Opener, tmp_path: Path, kind: str) -> None:
    page = visit(write_pages(tmp_path)[kind])
    page.emulate_media(media="print")
    assert page.get_by_role("table").is_visible()
    assert page.locator(".tools button:visible, .tools input:visible, a.skip:visible").count() == 0
    page.emulate_media(media="screen")


def test_every_control_has_a_name(visit: Opener, tmp_path: Path) -> None:
    for text in write_pages(tmp_path).values():
        page = visit(text)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("a[href], button, input, [tabindex]")].filter((element) =>
              !(element.getAttribute("aria-label") || element.textContent.trim() || element.title)).length"""
        )
        assert nameless == 0

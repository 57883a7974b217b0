"""The page of a tree of 5,000 steps follows a hand: no action keeps the browser busy for long."""

from __future__ import annotations

import importlib.util
from typing import Any

from reason.bench.page_tree import make_tree
from reason.runs.pages import tree_page
from tests.support.browser import Opener, tree_shown
from tests.support.paths import SCRIPTS


def script() -> Any:
    spec = importlib.util.spec_from_file_location("measure_pages", SCRIPTS / "dev" / "measure_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_actions_on_a_tree_of_5000_steps_are_short(visit: Opener) -> None:
    """CPU time of the main thread: a busy machine does not change it much. The bar has room for slow machines."""
    measure = script()
    record = make_tree(5000)
    page = visit(tree_page(record, None), width=1440, height=900)
    assert tree_shown(page, "shown") == str(len(record["nodes"]))
    _, times = measure.measure_page(page, page.url, 3)
    work = measure.median_work(times)
    assert set(work) == {*measure.ACTIONS, "click on a step"}
    assert max(work.values()) < 2 * measure.LIMIT_MS, work

"""The page of a tree in a browser: by keyboard, by mouse, in a small window, in the dark."""

from __future__ import annotations

from typing import Any

import pytest

from reason.runs.pages import index_page, tree_page
from reason.runs.pages.explanation import explain_answer
from reason.runs.pages.records import TreeRecord
from reason.runs.result import ProblemResult
from search.tree import SearchTree
from tests.support.browser import Opener, pixels, slide, source_text, tree_shown
from tests.support.search_records import NASTY, make_record, make_results, result_of


@pytest.fixture(scope="module")
def record() -> TreeRecord:
    return make_record()


@pytest.fixture(scope="module")
def tree_text(record: TreeRecord) -> str:
    return tree_page(record, result_of(record))


def path_of(record: TreeRecord, node: int | None) -> list[int]:
    assert node is not None
    return SearchTree.from_dict(record).path_nodes(node)


def test_tree_page_shows_the_explanation_and_the_winning_path(
    visit: Opener, record: TreeRecord, tree_text: str
) -> None:
    page = visit(tree_text)
    heading = page.get_by_role("heading", level=1).inner_text()
    assert heading == explain_answer(record, result_of(record))
    path = path_of(record, record["best"])
    assert tree_shown(page, "winning") == " ".join(map(str, path))
    assert tree_shown(page, "shown") == str(len(record["nodes"]))
    assert page.get_by_role("heading", level=2, name=f"Step {path[-1]} ★ on the winning path").is_visible()
    assert page.get_by_role("region", name="Votes").get_by_role("listitem").count() == len(record["votes"])
    assert pixels(page, "--won") > 200
    slide(page, 0)
    assert pixels(page, "--won") == 0


def test_slider_hides_later_steps_and_play_shows_them_again(visit: Opener) -> None:
    record = make_record(n=3, levels=2)
    page = visit(tree_page(record, None))
    places = len(record["nodes"]) + len(record["selections"])
    assert page.get_by_role("slider").get_attribute("max") == str(places)
    slide(page, 0)
    assert (tree_shown(page, "shown"), tree_shown(page, "selected")) == ("0", None)
    page.get_by_role("button", name="Play").click()
    page.locator("[data-shown]:not([data-shown='0'])").wait_for()
    page.locator(f"[data-shown='{len(record['nodes'])}']").wait_for()
    page.get_by_role("button", name="Play").wait_for()  # again, and not Pause: it has come to its end


def test_selection_is_a_slider_position(visit: Opener, record: TreeRecord, tree_text: str) -> None:
    page = visit(tree_text)
    first = record["selections"][0]
    slide(page, first["size"])
    assert tree_shown(page, "pruned") == "0"
    page.get_by_role("button", name="Next selection").click()
    assert (tree_shown(page, "shown"), tree_shown(page, "pruned")) == (str(first["size"]), str(len(first["reasons"])))
    status = page.get_by_role("status").filter(has_text="Selection 1").inner_text()
    assert f"KV {first['kv_tokens']} → {first['kept_tokens']} tokens" in status
    node, reason = next(iter(first["reasons"].items()))
    page.get_by_role("tree").focus()
    page.keyboard.press("Home")
    while tree_shown(page, "selected") != node:
        page.keyboard.press("ArrowDown")
    assert page.get_by_text(f"Selection 1: pruned: {reason}").is_visible()


def test_step_page_lists_every_selection_and_the_finish_of_a_step(visit: Opener) -> None:
    finishes = [None, "length", "eos", "deadline", None]
    nodes = [{"parent": -1, "text": f"step {i}", "finish": finish} for i, finish in enumerate(finishes)]
    selections: list[dict[str, Any]] = [
        {"size": 5, "nodes": [0, 4], "widths": [2, 1], "reasons": {}},
        {"size": 5, "nodes": [0, 4], "widths": [0, 0], "reasons": {"0": "cost"}},
    ]
    page = visit(tree_page({"nodes": nodes, "selections": selections}, None))
    assert page.get_by_role("slider").get_attribute("max") == "7"
    assert tree_shown(page, "pruned") == "1"
    ends = [
        ["Selection 1: 2 continuations", "Selection 2: pruned: cost"],
        ["Cut off (length) without an answer"],
        ["Finished without an answer"],
        ["Cut off (deadline) without an answer"],
        [
            "Selection 1: 1 continuation",
            "Selection 2: not continued",
            "Open when the search ended, without an answer",
        ],
    ]
    page.keyboard.press("Home")
    for fate in ends:
        assert page.locator("#fate li").all_inner_texts() == fate
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    page.keyboard.press("[")
    assert tree_shown(page, "pruned") == "0"
    assert page.locator("#fate li").all_inner_texts() == ends[0][:1]


def test_search_box_finds_counts_and_walks_through_hits(visit: Opener, record: TreeRecord, tree_text: str) -> None:
    page = visit(tree_text)
    hits = [node["id"] for node in record["nodes"] if "boxed{4}" in node["text"]]
    page.keyboard.press("/")
    page.keyboard.type("BOXED{4}")
    assert page.get_by_text(f"{len(hits)} hit").is_visible()
    assert pixels(page, "--mark") > 50
    page.keyboard.press("Enter")
    assert tree_shown(page, "selected") == str(hits[0])
    page.keyboard.press("Shift+Enter")
    assert tree_shown(page, "selected") == str(hits[-1])
    page.keyboard.press("Escape")
    assert pixels(page, "--mark") == 0
    assert page.evaluate("document.activeElement.id") == "tree"


def test_keyboard_walks_the_tree(visit: Opener, record: TreeRecord, tree_text: str) -> None:
    page = visit(tree_text)
    path = path_of(record, record["best"])
    for node in reversed(path[:-1]):
        page.keyboard.press("ArrowLeft")
        assert tree_shown(page, "selected") == str(node)
    for node in path[1:]:
        page.keyboard.press("ArrowRight")
        assert tree_shown(page, "selected") == str(node)
    page.keyboard.press("Home")
    assert tree_shown(page, "selected") == "0"
    page.keyboard.press("ArrowDown")
    assert tree_shown(page, "selected") == "1"
    item = page.get_by_role("treeitem")
    assert (item.get_attribute("aria-level"), item.get_attribute("aria-posinset")) == ("1", "2")
    page.keyboard.press("End")
    assert tree_shown(page, "selected") == str(len(record["nodes"]) - 1)
    page.keyboard.press("w")
    assert tree_shown(page, "selected") == str(record["best"])
    page.keyboard.press(",")
    assert page.get_by_role("slider").input_value() == str(len(record["nodes"]) + len(record["selections"]) - 1)
    slide(page, 0)  # from here it plays for ten seconds
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="Pause").is_visible()
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="Play").is_visible()
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()


def test_click_selects_drag_pans_and_wheel_zooms(visit: Opener, tree_text: str) -> None:
    page = visit(tree_text)
    box = page.get_by_role("tree").bounding_box()
    assert box
    whole = int(tree_shown(page, "visible") or 0)
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.wheel(0, -1500)
    page.locator(f"[role=tree]:not([data-visible='{whole}'])").wait_for()
    page.get_by_role("button", name="Fit").click()
    assert tree_shown(page, "visible") == str(whole)
    page.get_by_role("tree").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")  # step 0 is in the middle
    page.keyboard.press("ArrowDown")
    assert tree_shown(page, "selected") == "1"
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert tree_shown(page, "selected") == "0"
    page.get_by_role("button", name="Fit").click()
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] - 900, box["y"] + 100, steps=3)
    page.mouse.up()
    assert int(tree_shown(page, "visible") or 0) < whole


@pytest.mark.parametrize("text", NASTY[:3])
def test_step_text_is_shown_and_never_runs(visit: Opener, text: str) -> None:
    record = make_record(n=4, levels=3, text=lambda _: text) | {"question": text, "id": text, "votes": {text: 1.0}}
    page = visit(tree_page(record, ProblemResult.from_json({"id": text, "gold": text, "grade": "wrong"})))
    page.keyboard.press("Home")
    assert source_text(page, "#text") == text.strip()
    assert source_text(page, "#question") == text.strip()
    assert page.evaluate("window.hacked") is None
    table = visit(index_page([ProblemResult(id=text, question=text, error=text)], {}, {"task": text, "command": text}))
    assert table.evaluate("window.hacked") is None
    assert table.get_by_role("heading").inner_text() == text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tree_page_fits_small_windows_and_dark_mode(visit: Opener, tree_text: str, scheme: str) -> None:
    for text in (tree_text, index_page(make_results(30), {}, {"task": "aime", "search": "best_of_n"})):
        page = visit(text, width=400, height=800, scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)")


def test_tree_page_of_two_thousand_steps_can_be_walked_and_played(visit: Opener) -> None:
    record = make_record(n=280, levels=12, seed=1)
    assert len(record["nodes"]) >= 2000
    page = visit(tree_page(record, result_of(record)))
    assert tree_shown(page, "shown") == str(len(record["nodes"]))
    page.keyboard.press("ArrowLeft")
    assert tree_shown(page, "selected") == str(path_of(record, record["best"])[-2])
    slide(page, 500)
    assert int(tree_shown(page, "shown") or 0) < 500
    page.get_by_role("searchbox").fill("boxed")
    assert "hits" in page.get_by_role("status").first.inner_text()
    whole = int(tree_shown(page, "visible") or 0)
    page.get_by_role("tree").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert int(tree_shown(page, "visible") or 0) < whole / 4
    assert page.locator("body *").count() < 1000


def test_tree_page_without_nodes_or_selections_opens(visit: Opener) -> None:
    older: Any = {**make_record(n=3, levels=3), "selections": None, "best": None, "votes": {}}
    nothing: Any = {"nodes": []}
    for record in (nothing, older):
        page = visit(tree_page(record, None))
        for key in ("Home", "ArrowRight", "w", "Space", "]", "["):
            page.keyboard.press(key)
        assert page.get_by_text("No selections were recorded").is_visible()

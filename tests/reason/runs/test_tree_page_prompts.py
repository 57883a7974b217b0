"""The page of a search that wrote prompts of its own."""

from __future__ import annotations

from reason.runs.pages import tree_page
from reason.runs.pages.records import TreeRecord
from tests.support.browser import Opener, tree_shown

RECORD: TreeRecord = {
    "best": 3,
    "answer": "7",
    "candidates": [{"node": 3, "answer": "7", "score": None}],
    "nodes": [
        {"parent": -1, "text": "draft one", "finish": "eos"},
        {"parent": -1, "text": "draft two", "finish": None},
        {"parent": -2, "text": "the notes", "finish": "eos"},
        {"parent": -3, "text": "the end", "finish": "eos"},
    ],
    "contexts": [
        {"tokens": [1], "text": "Sum up <both>.", "purpose": "notes", "sources": [1, 0], "after": None},
        {"tokens": [2], "text": "Go on from the notes.", "purpose": "solution", "sources": [2], "after": None},
    ],
}


def test_page_says_where_a_new_prompt_begins_and_what_it_was_made_from(visit: Opener) -> None:
    page = visit(tree_page(RECORD, None))
    assert tree_shown(page, "winning") == "1 2 3"
    assert tree_shown(page, "selected") == "3"
    prompt = page.locator("#new-prompt")
    assert prompt.locator("summary").inner_text() == "New prompt for a solution, made from 1 step"
    prompt.locator("summary").click()
    assert prompt.get_by_text("Go on from the notes.").is_visible()
    assert page.get_by_text("Previous steps").is_hidden()
    prompt.get_by_role("button", name="the notes").click()
    assert tree_shown(page, "selected") == "2"
    assert prompt.locator("summary").inner_text() == "New prompt for notes, made from 2 steps"
    assert prompt.locator(".text").text_content() == "Sum up <both>."
    prompt.locator("summary").click()
    assert prompt.get_by_role("button").all_text_contents() == ["★ not scored  draft two", "not scored  draft one"]


def test_revised_solution_is_shown_as_finished_and_a_continued_one_as_neither(visit: Opener) -> None:
    page = visit(tree_page(RECORD, None))
    fates = []
    for node in range(2):
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown") if node else None
        assert tree_shown(page, "selected") == str(node)
        assert page.locator("#new-prompt summary").count() == 0
        fates.append(page.locator("#fate li").all_inner_texts())
    assert fates == [["Finished without an answer"], []]

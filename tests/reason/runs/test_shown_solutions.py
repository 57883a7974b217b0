"""The solution on top of a tree page: whole, of the answer that was clicked, and called only what it is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.runs.pages import tree_page
from reason.runs.pages.explanation import describe_choice, explain_answer
from reason.runs.pages.records import TreeRecord
from reason.runs.pages.tree import tree_page_data
from reason.runs.result import ProblemResult
from search.tree import SearchTree
from search.voting import VOTING_RULES
from tests.support.browser import Opener, pixels, source_text, tree_shown
from tests.support.search_records import embedded, make_record, result_of, solutions

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SCORES = st.none() | st.floats(0, 1).map(lambda score: round(score, 2))
SOLUTIONS = st.lists(st.tuples(st.sampled_from(["7", "8", "9", None]), SCORES), min_size=1, max_size=8)


@given(SOLUTIONS, st.sampled_from(VOTING_RULES))
def test_only_a_solution_with_the_highest_score_is_called_the_best_scored(
    pairs: list[tuple[str | None, float | None]], rule: str
) -> None:
    record = solutions(*pairs, rule=rule)
    choice, best = describe_choice(record), record["best"] or 0
    mine = [score for answer, score in pairs if answer == pairs[best][0]]
    known = [score for score in mine if score is not None]
    if "the best scored" in choice:
        assert pairs[best][1] == max(known) > min(known)
    if all(score is None for _, score in pairs):
        assert "score" not in choice + explain_answer(record, None)
    if choice.startswith("the first"):
        assert [answer for answer, _ in pairs].index(pairs[best][0]) == best


@given(SOLUTIONS, st.sampled_from(VOTING_RULES))
def test_the_answers_on_the_page_count_every_solution_once(
    pairs: list[tuple[str | None, float | None]], rule: str
) -> None:
    record = solutions(*pairs, rule=rule)
    rows = embedded(tree_page(record, None))["votes"]
    assert sum(row["solutions"] for row in rows) == len(pairs)
    assert {row["answer"]: row["votes"] for row in rows if row["votes"] is not None} == pytest.approx(
        record["votes"], rel=1e-4
    )


@given(SOLUTIONS.filter(lambda pairs: all(score is None for _, score in pairs)))
def test_majority_is_more_than_half_and_a_tie_is_called_one(pairs: list[tuple[str | None, float | None]]) -> None:
    record = solutions(*pairs)
    sentence, votes = explain_answer(record, None), sorted(record["votes"].values(), reverse=True)
    if "(majority)" in sentence:
        assert votes[0] > len(pairs) / 2
    if "more than any other answer" in sentence:
        assert len(votes) == 1 or votes[0] > votes[1]
    assert ("as many" in sentence) == (len(votes) > 1 and votes[0] == votes[1])


def test_peak_kv_is_that_of_the_row() -> None:
    record = make_record()
    result = ProblemResult.from_json({**result_of(record).to_json(), "kv": {"peak_tokens": 463}})
    assert ("peak KV tokens", "463") in tree_page_data(record, result)["facts"]  # type: ignore[operator]


def shown_text(page: Page) -> str:
    return source_text(page, "#solution-text")


def answers(page: Page) -> Locator:
    return page.get_by_role("region", name="Votes").get_by_role("button")


def text_of(record: TreeRecord, node: int | None) -> str:
    assert node is not None
    return SearchTree.from_dict(json.loads(json.dumps(record))).path_text(node).strip()


def test_winning_solution_is_on_top_in_one_piece(visit: Opener) -> None:
    record = make_record()
    page = visit(tree_page(record, result_of(record)))
    assert page.get_by_role("heading", name="★ The winning solution").is_visible()
    assert shown_text(page) == text_of(record, record["best"])


def test_click_on_an_answer_shows_its_solutions_one_after_the_other(visit: Opener) -> None:
    record = make_record(n=24)
    page = visit(tree_page(record, result_of(record)))
    other = next(answer for answer in record["votes"] if answer != record["answer"])
    nodes = {c["node"]: c["score"] or 0 for c in record["candidates"] if c["answer"] == other}
    ranked = sorted(nodes, key=lambda node: -nodes[node])
    button = answers(page).filter(has=page.get_by_title(other, exact=True))
    for node in [*ranked, ranked[0]]:
        button.click()
        assert shown_text(page) == text_of(record, node)
        assert tree_shown(page, "selected") == str(node)
        path = SearchTree.from_dict(json.loads(json.dumps(record))).path_nodes(node)
        assert tree_shown(page, "path") == " ".join(map(str, path))
    assert button.get_attribute("aria-pressed") == "true"
    assert page.get_by_role("heading", name=f"Solution with the answer {other}").is_visible()
    assert pixels(page, "--path") > 100
    page.keyboard.press("w")
    assert shown_text(page) == text_of(record, record["best"])
    assert answers(page).first.get_attribute("aria-pressed") == "true"


def test_solutions_without_an_answer_can_be_shown_and_nothing_unscored_is_called_scored(visit: Opener) -> None:
    record = solutions(("7", None), (None, None), ("8", None), ("7", None))
    page = visit(tree_page(record, None))
    names = [re.sub(r"\s+", " ", text) for text in answers(page).all_inner_texts()]
    assert names == ["★ 7 2 solutions", "8 1 solution", "no answer 1 solution"]
    answers(page).last.click()
    assert page.get_by_role("heading", name="Solution without an answer").is_visible()
    assert tree_shown(page, "selected") == "1"
    text = page.locator("body").inner_text()
    assert "score 0" not in text
    assert "best scored" not in text
    assert "finished: 4, with the winner" in text


def test_steps_are_listed_in_reading_order(visit: Opener) -> None:
    record = make_record(n=3, levels=5)
    page = visit(tree_page(record, None))
    panel = page.locator("aside")
    steps = [record["nodes"][node]["text"].strip() for node in map(int, (tree_shown(page, "winning") or "").split())]
    text = source_text(page, "aside")
    assert panel.is_visible()
    assert [text.index(step) for step in steps] == sorted(text.index(step) for step in steps)
    box, step = panel.bounding_box(), page.locator("#text").bounding_box()
    assert box is not None
    assert step is not None
    assert step["y"] + step["height"] <= box["y"] + box["height"] + 1  # it is scrolled to the step

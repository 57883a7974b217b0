"""The pages hold the data of the records, and no text of a record runs in them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from reason.runs.pages import index_page, tree_page
from reason.runs.pages.embed import embed_json, read_template
from reason.runs.pages.explanation import explain_answer
from reason.runs.pages.records import TreeRecord
from reason.runs.pages.tree import tree_page_data
from reason.runs.result import ProblemResult
from tests.support.paths import GOLDEN
from tests.support.search_records import NASTY, embedded, make_record, make_results, result_of, solutions

TEMPLATES = ("tree.html", "index.html")


def test_tree_page_holds_every_step_without_token_ids() -> None:
    record = make_record()
    page = tree_page(record, result_of(record))
    nodes = embedded(page)["nodes"]
    assert nodes["text"] == [node["text"] for node in record["nodes"]]
    assert nodes["parent"] == [node["parent"] for node in record["nodes"]]
    assert nodes["tokens"] == [len(node["tokens"]) for node in record["nodes"]]
    assert nodes["logprob"][5] == pytest.approx(
        sum(record["nodes"][5]["logprobs"]) / len(record["nodes"][5]["logprobs"]), rel=1e-4
    )
    assert len(page) < len(json.dumps(record)) + sum(len(read_template(name)) for name in TEMPLATES)


@pytest.mark.parametrize("text", NASTY)
def test_embedded_text_cannot_close_its_script_element(text: str) -> None:
    record = make_record(text=lambda _: text) | {"question": text, "id": text, "answer": text, "votes": {text: 1.0}}
    result = ProblemResult.from_json({"id": text, "gold": text, "grade": "wrong", "reason": text})
    bare_result = ProblemResult(id=text, question=text, answer=text)
    about = {"task": text, "command": text, "settings": {text: text}}
    for page, bare in (
        (tree_page(record, result), read_template("tree.html")),
        (index_page([bare_result], {text: text}, about), read_template("index.html")),
    ):
        before, after = bare.split("__DATA__")
        assert page.startswith(before)
        assert page.endswith(after)
        inside = page[len(before) : -len(after)]
        assert inside.isascii()
        assert not set("<>&") & set(inside)
        assert text in json.dumps(embedded(page), ensure_ascii=False).replace("\\\\", "\\").replace('\\"', '"')


def test_embedded_data_equals_the_data() -> None:
    data = {"a": [*NASTY, 1, 2.5, None, True], "</b>": {"c": ("d",)}}
    assert json.loads(embed_json(data)) == json.loads(json.dumps(data))
    assert json.loads(embed_json([math.nan, math.inf, {"x": -math.inf}])) == [None, None, {"x": None}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_page_templates_need_no_network_and_never_parse_text_as_html(name: str) -> None:
    text = read_template(name)
    assert not re.findall(r"https?:|//\w+\.\w|@import|url\(|\bfetch\(|XMLHttpRequest|src=", text)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    assert "default-src 'none'" in text


def test_old_record_without_selections_strategy_or_scores_makes_a_page() -> None:
    node = {
        "id": 0,
        "parent": -1,
        "depth": 1,
        "text": "x",
        "tokens": [1],
        "logprobs": [],
        "score": None,
        "finish": None,
    }
    records: list[Any] = [{"nodes": []}, {"nodes": [node]}, {"nodes": [node], "best": 0, "answer": "4"}]
    rows: list[dict[str, Any]] = [{}, {"error": "ValueError: no"}, {"spent": None, "gold": None}]
    results = [None, *(ProblemResult.from_json({"id": "p", **row}) for row in rows)]
    for record in [*records, records[-1] | {"candidates": None, "votes": None}]:
        for result in results:
            assert embedded(tree_page(record, result))["selections"] == []
    for golden in GOLDEN.glob("*.json"):
        record = json.loads(golden.read_text())
        if "nodes" not in record or isinstance(record["nodes"], int):
            continue  # not a tree
        assert len(embedded(tree_page(record, None))["nodes"]["text"]) == len(record["nodes"])


def test_pruning_reasons_are_found_under_int_and_text_keys() -> None:
    record = make_record()
    with_numbers = [
        {**one, "reasons": {int(node): why for node, why in one["reasons"].items()}}
        for one in record["selections"] or ()
    ]
    assert tree_page_data({**record, "selections": with_numbers}, None) == tree_page_data(record, None)


@pytest.mark.parametrize(
    ("record", "row", "sentence"),
    [
        (
            solutions(("42", 0.9), ("42", 0.7), ("7", 0.5)),
            {"grade": "right", "gold": "42"},
            "42 won: 2 of 3 finished solutions give it, together 1.60 of 2.10 votes (weighted by score); "
            "it is correct (gold answer 42).",
        ),
        (
            solutions(("42", None), ("42", None), ("7", None)),
            {"grade": "wrong", "gold": "7"},
            "42 won: 2 of 3 finished solutions give it (majority); it is wrong (gold answer 7, which 1 gives).",
        ),
        (
            solutions(("42", 0.9), ("7", 0.5), ("7", 0.6), rule="best"),
            {"grade": "wrong", "gold": "8"},
            "42 won: the best scored of 3 finished solutions gives it (score 0.90), alone; "
            "it is wrong (gold answer 8, which no solution found).",
        ),
        (
            solutions(("42", 0.9), ("42", 0.8)) | {"stopped": "budget"},
            {"grade": "ungraded", "gold": None},
            "42 won: all 2 finished solutions agree; there is no gold answer to compare it with; "
            "the budget ended the search.",
        ),
        (
            solutions((None, 0.9), (None, 0.8)),
            {"grade": "no_answer", "gold": "3"},
            "No answer: none of the 2 finished solutions states one; the best scored is shown; the gold answer is 3.",
        ),
        (
            solutions((None, None), (None, None)),
            {},
            "No answer: none of the 2 finished solutions states one; the first is shown.",
        ),
        (
            solutions(("7", None), ("8", None), ("9", None)),
            {},
            "7 won: 1 of 3 finished solutions gives it; 2 other answers have as many, and the first one wins.",
        ),
        (
            solutions(("7", None), ("7", None), ("8", None), ("9", None), (None, None)),
            {},
            "7 won: 2 of 5 finished solutions give it, more than any other answer.",
        ),
        (
            solutions(("42", 0.9), ("7", 0.5), ("7", 0.6), rule="best"),
            {"grade": "wrong", "gold": "7"},
            "42 won: the best scored of 3 finished solutions gives it (score 0.90), alone; "
            "it is wrong (gold answer 7, which 2 give, with a score of 0.60 at best).",
        ),
        ({"best": None, "nodes": []}, {}, "No answer: no solution was finished."),
        ({"nodes": []}, {"error": "RuntimeError: out of pages"}, "The problem failed: RuntimeError: out of pages"),
    ],
)
def test_explanation_of_the_answer_is_one_sentence(record: TreeRecord, row: dict[str, Any], sentence: str) -> None:
    result = ProblemResult.from_json({"id": "p", **row}) if row else None
    assert explain_answer(record, result) == sentence


def test_numbers_of_the_rows_stand_in_for_a_summary() -> None:
    totals = {name: value for name, value, _ in embedded(index_page(make_results(10), {}, {}))["totals"]}
    assert totals["chosen"] == "0.500 ± 0.189"  # 4 of 8: sqrt(.25 * 8/7 / 8)
    bare = {name: value for name, value, _ in embedded(index_page([ProblemResult(id="a")], {}, {}))["totals"]}
    assert bare == {"problems": "1", "tokens": "0", "scorer calls": "0", "seconds": "0.0"}
    assert embedded(index_page([], {}, {}))["rows"] == []

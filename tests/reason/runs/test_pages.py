"""The pages tell what is in the records, let nothing in them act, and work by keyboard, in a small window, in the dark.

The second half drives a real browser; it is skipped where there is none.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reason.runs.gather import Found, Measured
from reason.runs.metrics import Difference
from reason.runs.pages import index_page, tree_page
from reason.runs.pages.embed import embed, template
from reason.runs.pages.explanation import why
from reason.runs.pages.report import report_page
from reason.runs.pages.tree import tree_data
from search.allocation import softmax_widths
from search.selection import selection
from search.tree import SearchTree, Step
from search.voting import choose
from tests.support.paths import GOLDEN

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEMPLATES = ("tree.html", "index.html")
NASTY = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "\u2028\u2029 \\u003c \"quotes\" 'quotes' & &lt; \\frac{1}{2} $x^2$ 日本 🤯",
    "\ud800 a half of a character",
    "__DATA__",
)


# ------------------------------------------------------------------------------------------------------- made searches


def searched(
    n: int = 12, levels: int = 6, seed: int = 0, *, text: Callable[[int], str] | None = None
) -> dict[str, Any]:
    """The tree record of a made-up search: `n` branches for so many levels, dealt out as REBASE does."""
    dice = random.Random(seed)
    tree = SearchTree(tuple(range(40)))
    open_nodes, widths = [SearchTree.ROOT], [n]
    made, ended = [], []
    for level in range(levels):
        parents = [node for node, width in zip(open_nodes, widths, strict=True) for _ in range(width)]
        born = [_grow(tree, parent, dice, last=level == levels - 1, text=text) for parent in parents]
        ended += [node for node in born if tree.nodes[node].finish]
        open_nodes = [node for node in born if not tree.nodes[node].finish]
        if not open_nodes:
            break
        scores = [tree.nodes[node].score or 0.0 for node in open_nodes]
        widths = softmax_widths(scores, max(n - len(ended), 1), 0.2)
        alike = {node: "redundancy" for node in open_nodes if dice.random() < 0.25}
        note = {"gap": 0.01, "solver": "exact"} if level % 2 else {}
        made.append(asdict(selection(tree, open_nodes, widths, reasons=alike, note=note)))
    answers = [_answer(tree.nodes[node].step.text) for node in ended]
    scores_of = [tree.nodes[node].score for node in ended]
    choice = choose(answers, scores_of, "weighted")
    best = None if choice.index is None else choice.index
    return {
        "id": "aime/2024/7",
        "question": "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
        "best": None if best is None else ended[best],
        "answer": None if best is None else answers[best],
        "votes": choice.votes,
        "stopped": "done",
        "strategy": {
            "_target_": "search.strategies.rebase.Rebase",
            "n": n,
            "temperature": 0.2,
            "sampling": {"temperature": 1.0},
        },
        "candidates": [
            {"node": node, "answer": answer, "score": score}
            for node, answer, score in zip(ended, answers, scores_of, strict=True)
        ],
        "selections": json.loads(json.dumps(made)),
        **tree.to_dict(),
    }


def _grow(tree: SearchTree, parent: int, dice: random.Random, *, last: bool, text: Callable[[int], str] | None) -> int:
    depth = 1 if parent == SearchTree.ROOT else tree.nodes[parent].depth + 1
    before = 0.6 if parent == SearchTree.ROOT else tree.nodes[parent].score or 0.5
    finished = depth > 2 and (last or dice.random() < 0.12)
    value = dice.choice([15, 15, 15, 15, 4, 8, 12])
    lead = dice.choice(["We get", "So", "First,", "Next,", "Let us compute", "Reducing modulo 19 gives"])
    said = text(len(tree)) if text else f"{lead} x{depth}: 5*{value}={5 * value}, {5 * value}+8={5 * value + 8}.\n\n"
    said = f"The answer is \\boxed{{{value}}}." if finished else said
    tokens = tuple(range(8 + dice.randrange(20)))
    step = Step(tokens, said, tuple(-dice.random() for _ in tokens))
    score = min(0.99, max(0.01, 0.6 * before + 0.2 + dice.gauss(0, 0.2)))
    return tree.add(parent, step, score=score, finish="eos" if finished else None)


def _answer(text: str) -> str | None:
    found = re.search(r"\\boxed\{(.*)\}", text)
    return found.group(1) if found else None


def row_of(record: dict[str, Any], gold: str | None = "15") -> dict[str, Any]:
    grade = "right" if record["answer"] == gold else "wrong"
    return {
        "id": record["id"],
        "question": record["question"],
        "gold": gold,
        "answer": record["answer"],
        "grade": grade,
        "samples": [{**c, "grade": "right" if c["answer"] == gold else "wrong"} for c in record["candidates"]],
        "spent": {"tokens": 3047, "calls": 71, "seconds": 4.25, "scorer_calls": 68},
        "error": None,
    }


def some_rows(count: int) -> list[dict[str, Any]]:
    dice = random.Random(0)
    grades = ["right", "right", "wrong", "no_answer", "ungraded"]
    return [
        {
            "id": f"aime/{i}",
            "question": f"Let $a_{i}$ be a sequence with $a_0 = {i}$ and $a_{{k+1}} = 5a_k + 8$ modulo 19. Find $a_3$.",
            "grade": grades[i % 5],
            "answer": None if grades[i % 5] == "no_answer" else str(i % 19),
            "gold": None if grades[i % 5] == "ungraded" else str(i % 17),
            "error": "RuntimeError: out of pages" if i % 50 == 49 else None,
            "nodes": dice.randrange(20, 400),
            "spent": {"tokens": dice.randrange(400, 9000), "seconds": dice.expovariate(0.2)},
        }
        for i in range(count)
    ]


def embedded(page: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1))


# -------------------------------------------------------------------------------------------------- without a browser


def test_every_step_is_on_the_page_and_what_is_heavy_is_not() -> None:
    record = searched()
    page = tree_page(record, row_of(record))
    nodes = embedded(page)["nodes"]
    assert nodes["text"] == [node["text"] for node in record["nodes"]]
    assert nodes["parent"] == [node["parent"] for node in record["nodes"]]
    assert nodes["tokens"] == [len(node["tokens"]) for node in record["nodes"]]
    assert nodes["logprob"][5] == pytest.approx(
        sum(record["nodes"][5]["logprobs"]) / len(record["nodes"][5]["logprobs"]), rel=1e-4
    )
    assert len(page) < len(json.dumps(record)) + sum(len(template(name)) for name in TEMPLATES)


@pytest.mark.parametrize("text", NASTY)
def test_no_text_gets_out_of_its_script_element(text: str) -> None:
    record = searched(text=lambda _: text) | {"question": text, "id": text, "answer": text, "votes": {text: 1.0}}
    row = {"gold": text, "grade": "wrong", "reason": text, "error": None}
    for page, bare in (
        (tree_page(record, row), template("tree.html")),
        (index_page([{"id": text, "question": text, "answer": text}], {text: text}, text), template("index.html")),
    ):
        before, after = bare.split("__DATA__")
        assert page.startswith(before)
        assert page.endswith(after)
        inside = page[len(before) : -len(after)]
        assert inside.isascii()
        assert not set("<>&") & set(inside)
        assert text in json.dumps(embedded(page), ensure_ascii=False).replace("\\\\", "\\").replace('\\"', '"')


def test_embedded_data_is_the_data() -> None:
    data = {"a": [*NASTY, 1, 2.5, None, True], "</b>": {"c": ("d",)}}
    assert json.loads(embed(data)) == json.loads(json.dumps(data))
    assert json.loads(embed([math.nan, math.inf, {"x": -math.inf}])) == [None, None, {"x": None}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_page_needs_no_network_and_never_parses_text_as_html(name: str) -> None:
    text = template(name)
    assert not re.findall(r"https?:|//\w+\.\w|@import|url\(|\bfetch\(|XMLHttpRequest|src=", text)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    assert "default-src 'none'" in text


def test_an_old_record_without_selections_strategy_or_scores_makes_a_page() -> None:
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
    records: list[dict[str, Any]] = [{"nodes": []}, {"nodes": [node]}, {"nodes": [node], "best": 0, "answer": "4"}]
    rows: list[dict[str, Any]] = [{}, {"error": "ValueError: no"}, {"spent": None, "gold": None}]
    for record in [*records, records[-1] | {"candidates": None, "votes": None}]:
        for row in rows:
            assert embedded(tree_page(record, row))["selections"] == []
    for golden in GOLDEN.glob("*.json"):
        record = json.loads(golden.read_text())
        assert len(embedded(tree_page(record, {}))["nodes"]["text"]) == len(record["nodes"])


def test_reasons_are_found_whether_their_keys_are_numbers_or_text() -> None:
    record = searched()
    told = [
        {**one, "reasons": {int(node): why for node, why in one["reasons"].items()}} for one in record["selections"]
    ]
    assert tree_data(record | {"selections": told}, {}) == tree_data(record, {})


def solutions(*pairs: tuple[str | None, float | None], rule: str = "weighted") -> dict[str, Any]:
    """A record of finished one-step solutions from (answer, score) pairs."""
    choice = choose([answer for answer, _ in pairs], [score for _, score in pairs], rule)
    candidates = [{"node": i, "answer": answer, "score": score} for i, (answer, score) in enumerate(pairs)]
    return {
        "best": choice.index,
        "answer": None if choice.index is None else pairs[choice.index][0],
        "votes": choice.votes,
        "candidates": candidates,
        "nodes": [{"parent": -1, "finish": "eos"} for _ in pairs],
    }


@pytest.mark.parametrize(
    ("record", "row", "sentence"),
    [
        (
            solutions(("42", 0.9), ("42", 0.7), ("7", 0.5)),
            {"grade": "right", "gold": "42"},
            "42 won: 2 of 3 finished solutions say so, together 1.60 of 2.10 votes (weighted by score); "
            "it is correct (gold answer 42).",
        ),
        (
            solutions(("42", None), ("42", None), ("7", None)),
            {"grade": "wrong", "gold": "7"},
            "42 won: 2 of 3 finished solutions say so (majority); it is wrong (gold answer 7, which 1 says).",
        ),
        (
            solutions(("42", 0.9), ("7", 0.5), ("7", 0.6), rule="best"),
            {"grade": "wrong", "gold": "8"},
            "42 won: the best scored of 3 finished solutions says so (0.90), alone; "
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
        ({"best": None, "nodes": []}, {}, "No answer: no solution was finished."),
        ({"nodes": []}, {"error": "RuntimeError: out of pages"}, "The problem failed: RuntimeError: out of pages"),
    ],
)
def test_one_sentence_says_why_the_answer_won(record: dict[str, Any], row: dict[str, Any], sentence: str) -> None:
    assert why(record, row) == sentence


def test_totals_have_a_standard_error_and_leave_out_what_is_not_known() -> None:
    totals = dict(embedded(index_page(some_rows(10), {}, "run"))["totals"])
    assert totals["accuracy"] == "0.500 ± 0.189"  # 4 of 8: sqrt(.25 * 8/7 / 8)
    assert dict(embedded(index_page([{"id": "a"}], {}, "run"))["totals"]) == {"problems": "1"}
    assert embedded(index_page([], {}, "empty"))["rows"] == []


# ------------------------------------------------------------------------------------------------------ in a browser

Opener = Callable[..., "Page"]


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    """One for the module; it is closed with it, since its event loop would be in the way of other tests' loops."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("no playwright: pip install playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program)
        page = browser.new_context(offline=True).new_page()
        page.set_default_timeout(10_000)
        yield page
        browser.close()


@pytest.fixture
def visit(tab: Page, tmp_path: Path) -> Iterator[Opener]:
    """Opens a page's text; in the end no page has complained or asked for anything but itself."""
    file = tmp_path / "page.html"
    complaints: list[str] = []
    listeners: dict[Any, Callable[[Any], None]] = {
        "console": lambda message: complaints.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: complaints.append(str(error)),
        "request": lambda request: complaints.append(request.url) if request.url != file.as_uri() else None,
    }
    for event, listener in listeners.items():
        tab.on(event, listener)

    def open_page(text: str, *, width: int = 1280, height: int = 800, scheme: Any = "light") -> Page:
        file.write_text(text, encoding="utf-8")
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(color_scheme=scheme)
        tab.goto(file.as_uri())
        return tab

    yield open_page
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert complaints == []


def tree_shown(page: Page, attribute: str) -> str | None:
    """What the drawing says of itself, once it is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.get_by_role("tree").get_attribute(f"data-{attribute}")


def pixels(page: Page, variable: str) -> int:
    """How many pixels of the drawing have exactly the colour of this CSS variable."""
    tree_shown(page, "shown")
    count: int = page.evaluate(
        """(name) => {
          const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
          const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
          const canvas = document.querySelector("[role=tree] canvas");
          const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
          copy.drawImage(canvas, 0, 0);
          const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let at = 0; at < data.length; at += 4) count += wanted.every((value, k) => data[at + k] === value);
          return count;
        }""",
        variable,
    )
    return count


def slide(page: Page, place: int) -> None:
    page.get_by_role("slider", name="Place in the search").fill(str(place))


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return searched()


@pytest.fixture(scope="module")
def tree_text(record: dict[str, Any]) -> str:
    return tree_page(record, row_of(record))


def path_of(record: dict[str, Any], node: int) -> list[int]:
    return SearchTree.from_dict(record).path(node)


def test_a_stranger_reads_why_and_sees_the_winning_path(visit: Opener, record: dict[str, Any], tree_text: str) -> None:
    page = visit(tree_text)
    heading = page.get_by_role("heading", level=1).inner_text()
    assert heading == why(record, row_of(record))
    path = path_of(record, record["best"])
    assert tree_shown(page, "winning") == " ".join(map(str, path))
    assert tree_shown(page, "shown") == str(len(record["nodes"]))
    assert page.get_by_role("heading", level=2, name=f"Step {path[-1]} ★ on the winning path").is_visible()
    assert page.get_by_role("region", name="Votes").get_by_role("listitem").count() == len(record["votes"])
    assert pixels(page, "--won") > 200
    slide(page, 0)
    assert pixels(page, "--won") == 0


def test_the_slider_hides_what_was_not_there_yet_and_playing_brings_it_back(visit: Opener) -> None:
    record = searched(n=3, levels=2)
    page = visit(tree_page(record, {}))
    places = len(record["nodes"]) + len(record["selections"])
    assert page.get_by_role("slider").get_attribute("max") == str(places)
    slide(page, 0)
    assert (tree_shown(page, "shown"), tree_shown(page, "selected")) == ("0", None)
    page.get_by_role("button", name="Play").click()
    page.locator("[data-shown]:not([data-shown='0'])").wait_for()
    page.locator(f"[data-shown='{len(record['nodes'])}']").wait_for()
    page.get_by_role("button", name="Play").wait_for()  # again, and not Pause: it has come to its end


def test_a_selection_is_a_place_of_its_own(visit: Opener, record: dict[str, Any], tree_text: str) -> None:
    page = visit(tree_text)
    first = record["selections"][0]
    slide(page, first["size"])
    assert tree_shown(page, "pruned") == "0"
    page.get_by_role("button", name="Next selection").click()
    assert (tree_shown(page, "shown"), tree_shown(page, "pruned")) == (str(first["size"]), str(len(first["reasons"])))
    told = page.get_by_role("status").filter(has_text="Selection 1").inner_text()
    assert f"KV {first['kv_tokens']} → {first['kept_tokens']} tokens" in told
    node, reason = next(iter(first["reasons"].items()))
    page.get_by_role("tree").focus()
    page.keyboard.press("Home")
    while tree_shown(page, "selected") != node:
        page.keyboard.press("ArrowDown")
    assert page.get_by_text(f"Selection 1: pruned: {reason}").is_visible()


def test_a_step_may_be_selected_often_and_end_in_many_ways(visit: Opener) -> None:
    finishes = [None, "length", "eos", "deadline", None]
    nodes = [{"parent": -1, "text": f"step {i}", "finish": finish} for i, finish in enumerate(finishes)]
    selections: list[dict[str, Any]] = [
        {"size": 5, "nodes": [0, 4], "widths": [2, 1], "reasons": {}},
        {"size": 5, "nodes": [0, 4], "widths": [0, 0], "reasons": {"0": "cost"}},
    ]
    page = visit(tree_page({"nodes": nodes, "selections": selections}, {}))
    assert page.get_by_role("slider").get_attribute("max") == "7"
    assert tree_shown(page, "pruned") == "1"
    ends = [
        ["Selection 1: given 2 continuations", "Selection 2: pruned: cost"],
        ["Cut off (length) without an answer"],
        ["Finished without an answer"],
        ["Cut off (deadline) without an answer"],
        [
            "Selection 1: given 1 continuation",
            "Selection 2: given none",
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


def test_search_finds_counts_and_goes_through_the_hits(visit: Opener, record: dict[str, Any], tree_text: str) -> None:
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


def test_the_keyboard_walks_the_tree(visit: Opener, record: dict[str, Any], tree_text: str) -> None:
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


def test_a_click_selects_a_drag_pans_and_the_wheel_zooms(visit: Opener, tree_text: str) -> None:
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
def test_text_is_shown_and_never_runs(visit: Opener, text: str) -> None:
    record = searched(n=4, levels=3, text=lambda _: text) | {"question": text, "id": text, "votes": {text: 1.0}}
    page = visit(tree_page(record, {"gold": text, "grade": "wrong", "error": None}))
    page.keyboard.press("Home")
    assert page.locator("#text").inner_text() == text.strip()
    assert page.locator("#question").inner_text() == text
    assert page.evaluate("window.hacked") is None
    table = visit(index_page([{"id": text, "question": text, "error": text}], {}, text))
    assert table.evaluate("window.hacked") is None
    assert table.get_by_role("heading").inner_text() == text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_windows_and_the_dark(visit: Opener, tree_text: str, scheme: str) -> None:
    for text in (tree_text, index_page(some_rows(30), {}, "aime, best_of_n")):
        page = visit(text, width=400, height=800, scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)")


def test_two_thousand_steps_can_be_walked_and_played(visit: Opener) -> None:
    record = searched(n=280, levels=12, seed=1)
    assert len(record["nodes"]) >= 2000
    page = visit(tree_page(record, row_of(record)))
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


def test_a_tree_without_nodes_or_selections_is_a_page_too(visit: Opener) -> None:
    older = searched(n=3, levels=3) | {"selections": None, "best": None, "votes": {}}
    nothing: dict[str, Any] = {"nodes": []}
    for record in (nothing, older):
        page = visit(tree_page(record, {}))
        for key in ("Home", "ArrowRight", "w", "Space", "]", "["):
            page.keyboard.press(key)
        assert page.get_by_text("No selections were recorded").is_visible()


def ids(page: Page) -> list[str]:
    lines = page.locator("tbody tr:visible")
    return [str(line.get_attribute("data-id")) for line in lines.all()]


def test_the_index_sorts_filters_and_links(visit: Opener) -> None:
    rows = some_rows(40)
    page = visit(index_page(rows, {"aime/3": "trees/3.html"}, "aime, best_of_n"))
    assert ids(page) == [row["id"] for row in rows]
    head = page.get_by_role("columnheader", name="tokens")
    by_tokens = [row["id"] for row in sorted(rows, key=lambda row: -row["spent"]["tokens"])]
    for expected, sort in ((by_tokens, "descending"), (by_tokens[::-1], "ascending"), (ids(page), "none")):
        head.get_by_role("button").click()
        assert (ids(page), head.get_attribute("aria-sort")) == (expected, sort)
    page.get_by_role("button", name="no answer").click()
    assert ids(page) == [row["id"] for row in rows if row["grade"] == "no_answer"]
    page.get_by_role("button", name="no answer").click()
    page.get_by_role("searchbox").fill("aime/3")
    assert ids(page) == [row["id"] for row in rows if "aime/3" in row["id"]]
    assert page.get_by_role("status").inner_text() == "11 of 40 problems"
    links = page.get_by_role("link")
    assert (links.count(), links.get_attribute("href")) == (1, "trees/3.html")


def test_the_index_holds_a_thousand_rows(visit: Opener) -> None:
    page = visit(index_page(some_rows(1000), {}, "many"))
    page.get_by_role("columnheader", name="seconds").get_by_role("button").click()
    page.get_by_role("searchbox").fill("out of pages")
    assert page.get_by_role("status").inner_text() == "20 of 1000 problems"


def test_a_report_draws_every_run_against_each_cost_and_leads_to_it(visit: Opener, tmp_path: Path) -> None:
    def found(i: int, accuracy: float, cost: float) -> Found:
        interval = Difference(accuracy, accuracy - 0.05, accuracy + 0.05, 50)
        costs = {"tokens": cost, "forwards": 900 - cost, "seconds": 2.0, "kv": cost / 2}
        measured = Measured(interval, costs, problems=50, failed=0)
        return Found(tmp_path / str(i), f"search.n={i}", {}, "done", measured, None, tmp_path / str(i) / "index.html")

    runs = [found(0, 0.4, 100), found(1, 0.6, 400), found(2, 0.5, 500)]
    broken = Found(tmp_path / "3", "search=<b>ets</b>", {}, "unfinished", None, "OSError: gone", None)
    page = visit(report_page([*runs, broken], "Four runs", tmp_path))
    points = page.locator("#plot a")
    hrefs = [points.nth(i).get_attribute("href") for i in range(points.count())]
    assert hrefs == ["2/index.html", "0/index.html", "1/index.html"]  # those of the front above the beaten one
    assert page.locator("#plot circle.best").count() == 2
    page.get_by_role("group", name="Cost").get_by_role("button", name="forwards").click()
    best = page.locator("#plot a:has(circle.best)")
    assert [best.nth(i).get_attribute("data-place") for i in range(best.count())] == ["1", "2"]
    rows = page.get_by_role("row")
    assert "OSError: gone" in rows.nth(4).inner_text()
    assert "search=<b>ets</b>" in rows.nth(4).inner_text()
    page.get_by_role("button", name="accuracy").click()
    assert rows.nth(1).inner_text().startswith("search.n=1")

"""The plot of a report: a line and a colour per search, names that can be read and cover nothing, on a phone too."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reason.runs.gather import FoundRun, RunMeasurement, find_differences, format_label
from reason.runs.metrics import PairedDifference
from reason.runs.pages.embed import read_template
from reason.runs.pages.report import report_page
from reason.runs.pages.report_names import RunName, find_swept_setting, name_runs
from tests.support.browser import Opener
from tests.support.search_records import NASTY

if TYPE_CHECKING:
    from playwright.sync_api import Page

Settings = tuple[dict[str, Any], dict[str, str]]
SEARCHES = ("best_of_n", "beam_search", "dvts", "rebase", "ets", "mcts", "astar", "treepo", "particle_filter", "pdr")


def make_runs(settings: list[Settings], home: Path = Path("runs")) -> list[FoundRun]:
    """Runs with these settings and choices: the more samples, the more exact and the more costly."""
    dice, runs = random.Random(0), []
    for i, (differing, (config, choices)) in enumerate(zip(find_differences(settings), settings, strict=True)):
        n = config.get("search", {}).get("n", 8)
        accuracy, cost = min(0.95, 0.3 + 0.05 * n**0.5 + dice.random() / 9), 100.0 * n * dice.uniform(0.7, 1.4)
        costs = {"tokens": cost, "forwards": cost, "seconds": 2.0, "kv": cost / 2}
        measured = RunMeasurement(PairedDifference(accuracy, accuracy - 0.05, accuracy + 0.05, 50), costs, 50, 0)
        names = {name: choices[name] for name in ("search",) if name in choices}
        label = format_label(differing)
        runs.append(FoundRun(home / str(i), label, names, "done", measured, None, home / f"{i}.html", differing))
    return runs


def sweep_runs(searches: tuple[str, ...] = SEARCHES, sizes: tuple[int, ...] = (4, 16, 64)) -> list[FoundRun]:
    return make_runs([({"search": {"n": n}}, {"search": name}) for name in searches for n in sizes])


def names_of(*settings: Settings) -> list[RunName]:
    return name_runs(make_runs(list(settings)))


def test_runs_are_named_by_what_differs_and_nothing_else() -> None:
    names = name_runs(sweep_runs(("ets", "mcts"), (4, 16)))
    assert [name.short for name in names] == ["ets n=4", "ets n=16", "mcts n=4", "mcts n=16"]
    assert [name.series for name in names] == ["ets", "ets", "mcts", "mcts"]
    assert [name.point for name in names] == ["n=4", "n=16"] * 2
    assert [name.hue for name in names] == ["ets", "ets", "mcts", "mcts"]
    one, other = names_of(({"seed": 0}, {"speculation": "off"}), ({"seed": 0}, {"speculation": "stand"}))
    assert (one.short, other.short) == ("no speculation", "stand")
    assert one.hue != other.hue


def test_seeds_are_lines_of_their_own_and_equal_settings_are_numbered() -> None:
    names = names_of(*[({"seed": seed, "search": {"n": n}}, {"search": "ets"}) for seed in (0, 1) for n in (4, 8)])
    assert [(name.series, name.point) for name in names] == [
        (f"seed={seed}", f"n={n}") for seed in (0, 1) for n in (4, 8)
    ]
    same = names_of(*[({"seed": 0}, {"search": "ets"})] * 2)
    assert [name.short for name in same] == ["run #1", "run #2"]


def test_words_that_two_settings_share_are_written_out() -> None:
    configs = [{"search": {"n": 4, "width": w}, "draft": {"width": w}} for w in (1, 2)]
    names = names_of(*[(config, {"search": "ets"}) for config in configs])
    assert [name.short for name in names] == [f"search.width={w} draft.width={w}" for w in (1, 2)]
    prm = names_of(({}, {"scorer": "prm", "judge": "prm"}), ({}, {"scorer": "none", "judge": "none"}))
    assert [name.short for name in prm] == ["judge=prm scorer=prm", "no judge no scorer"]


@pytest.mark.parametrize(
    ("runs", "swept"),
    [
        ([{"search.n": 4, "budget.tokens": 1}, {"search.n": 8, "budget.tokens": 2}], "search.n"),
        ([{"a.b": 1, "a.c": 1}, {"a.b": 1, "a.c": 2}, {"a.b": 2, "a.c": 3}], "a.c"),
        ([{"seed": 1, "a.flag": True}, {"seed": 2, "a.flag": False}, {"search": "ets"}], None),
    ],
)
def test_the_swept_setting_is_a_number_that_differs(runs: list[dict[str, object]], swept: str | None) -> None:
    assert find_swept_setting(runs) == swept


def visit_report(visit: Opener, runs: list[FoundRun], **more: Any) -> Page:
    return visit(report_page(runs, f"{len(runs)} runs", Path("runs")), **more)


def boxes(page: Page, selector: str) -> list[dict[str, float]]:
    rectangles: list[dict[str, float]] = page.locator(selector).evaluate_all(
        "(all) => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    return rectangles


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    return all(
        a[at] < b[at] + b[size] - 0.5 and b[at] < a[at] + a[size] - 0.5
        for at, size in (("x", "width"), ("y", "height"))
    )


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_name_covers_another_or_leaves_the_plot(visit: Opener, width: int, scheme: str) -> None:
    page = visit_report(visit, sweep_runs(sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)), width=width, scheme=scheme)
    (plot,) = boxes(page, "#plot")
    names = boxes(page, "#plot .name")
    assert len(names) >= 12
    assert not [pair for pair in combinations(names, 2) if overlap(*pair)]
    for name in names:
        assert plot["x"] <= name["x"]
        assert name["x"] + name["width"] <= plot["x"] + plot["width"]
        assert name["height"] > 9  # pixels: it can be read
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_search_has_one_line_and_a_colour_and_shape_of_its_own(visit: Opener) -> None:
    page = visit_report(visit, sweep_runs())
    assert page.locator("#plot .line").evaluate_all("(all) => all.map((one) => one.dataset.series)") == list(SEARCHES)
    looks = page.locator("#series .key path").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).fill + one.getAttribute('d'))"
    )
    assert len(set(looks)) == len(SEARCHES)
    buttons = page.get_by_role("group", name="Lines").get_by_role("button")
    assert buttons.all_inner_texts() == list(SEARCHES)
    buttons.nth(1).click()
    assert page.locator("#plot .line:not(.dim)").get_attribute("data-series") == SEARCHES[1]
    assert page.locator("#plot a:not(.dim)").count() == 3
    buttons.nth(1).click()
    assert page.locator("#plot .dim").count() == 0


def test_names_of_runs_break_between_words_on_a_phone(visit: Opener) -> None:
    page = visit_report(visit, sweep_runs(("best_of_n", "particle_filter")), width=320)
    for cell in page.locator("td.short a").all():
        lines: list[str] = cell.evaluate(
            """(link) => {
              const range = document.createRange(), text = link.firstChild, lines = [];
              let top = null;
              for (let at = 0; at < text.length; at++) {
                range.setStart(text, at); range.setEnd(text, at + 1);
                const {bottom} = range.getBoundingClientRect();
                if (top === null || bottom > top + 4) lines.push("");
                top = bottom;
                lines[lines.length - 1] += text.data[at];
              }
              return lines;
            }"""
        )
        assert " ".join(line.strip() for line in lines) == cell.inner_text()


def test_names_of_runs_are_shown_and_never_run(visit: Opener) -> None:
    settings = [({"search": {"note": text}}, {"search": "ets"}) for text in NASTY if text.isprintable()]
    page = visit_report(visit, make_runs([*settings]))
    assert page.evaluate("window.hacked") is None
    assert NASTY[0] in page.locator("tbody").inner_text()
    text = read_template("report.html").replace('"http://www.w3.org/2000/svg"', "")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:", "https:"):
        assert word not in text

"""Runs compared on common problems, curves from saved samples, and results as tables."""

from __future__ import annotations

import csv
import json
from math import comb
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason.runs.compare import compare_runs, list_common_problems
from reason.runs.curves import compute_curves, curve_rows
from reason.runs.export_rows import export_rows
from reason.runs.gather import FoundRun, find_runs
from reason.runs.pages.compare import compare_page
from reason.runs.result import ProblemResult
from tests.support.run_folders import make_row, make_run


def found_run(rights: list[bool], tokens: int = 100, first: int = 0) -> FoundRun:
    rows = [ProblemResult.from_json(make_row(first + i, right, tokens)) for i, right in enumerate(rights)]
    return FoundRun(Path(str(tokens)), "", {}, "done", None, None, None, results=rows)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_pair_counts_and_p_value_are_those_of_the_discordant_problems(pairs: list[tuple[bool, bool]]) -> None:
    a, b = found_run([x for x, _ in pairs], 100), found_run([y for _, y in pairs], 300)
    (pair,) = compare_runs([a, b])
    only_a, only_b = sum(x > y for x, y in pairs), sum(y > x for x, y in pairs)
    assert (pair.only_a, pair.only_b) == (only_a, only_b)
    assert pair.difference.value == pytest.approx((only_a - only_b) / len(pairs))
    assert pair.difference.low - 1e-9 <= pair.difference.value <= pair.difference.high + 1e-9
    n, least = only_a + only_b, min(only_a, only_b)
    # twice the smaller tail of a binomial; the two tails meet where both counts are equal
    tails = 2 * sum(comb(n, k) for k in range(least + 1)) / 2**n
    assert pair.p_value == pytest.approx(min(1.0, tails))
    assert pair.cost_ratios["tokens"] == pytest.approx(1 / 3)


def test_only_common_problems_with_the_same_gold_answer_are_compared() -> None:
    a, b = found_run([True, False, True]), found_run([False, True], first=2)
    (pair,) = compare_runs([a, b])
    assert (pair.only_a, pair.only_b, pair.difference.problems) == (1, 0, 1)
    other = ProblemResult.from_json(make_row(2, True, 100) | {"gold": "7"})
    with pytest.raises(ValueError, match="p/2: the gold answer is 1 in 100 and 7 in 100"):
        list_common_problems([a, FoundRun(Path("100"), "", {}, "done", None, None, None, results=[other])])
    with pytest.raises(ValueError, match="no problem with a gold answer in common"):
        compare_runs([a, found_run([True], first=9)])
    with pytest.raises(ValueError, match="at least two runs"):
        compare_runs([a])


def test_broken_run_is_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "0", 4, [True])
    make_run(tmp_path / "1", 8, [], stopped=None)
    with pytest.raises(ValueError, match=r"1: no result yet"):
        compare_runs(find_runs([tmp_path]))


def test_page_has_each_pair_and_each_common_problem(tmp_path: Path) -> None:
    make_run(tmp_path / "0", 4, [True, False])
    make_run(tmp_path / "1", 8, [True, True, True])
    runs = find_runs([tmp_path])
    page = compare_page(runs, compare_runs(runs), tmp_path)
    data = json.loads(page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])
    assert [run["href"] for run in data["runs"]] == ["0/index.html", "1/index.html"]
    assert [row["grades"] for row in data["rows"]] == [["right", "right"], ["wrong", "right"]]
    (pair,) = data["pairs"]
    assert (pair["a"], pair["b"], pair["onlyA"], pair["onlyB"], pair["costs"]["tokens"]) == (0, 1, 0, 1, 0.5)


def graded_run(samples: list[list[tuple[str, bool, float | None]]]) -> FoundRun:
    rows = [
        ProblemResult.from_json(
            make_row(i, False, 10)
            | {
                "samples": [
                    {"node": 0, "answer": a, "grade": "right" if right else "wrong", "score": s}
                    for a, right, s in problem
                ]
            }
        )
        for i, problem in enumerate(samples)
    ]
    return FoundRun(Path("run"), "", {}, "done", None, None, None, results=rows)


def test_curves_of_saved_samples() -> None:
    run = graded_run([[("1", True, 0.9), ("2", False, 0.1), ("2", False, 0.1), ("3", False, None)]])
    curves = compute_curves(run)
    assert {name: [round(point.value, 3) for point in points] for name, points in curves.items()} == {
        "avg": [0.25, 0.25, 0.25],
        "pass": [0.25, 0.5, 1.0],
        "maj": [0.25, 0.25, 0.0],
        # where no sample of a subset has a score, all votes are equal
        "weighted": [0.25, pytest.approx(0.417, abs=0.1), 1.0],
        "best": [0.25, pytest.approx(0.417, abs=0.1), 1.0],
    }
    header, rows = curve_rows(curves)
    assert header == ["samples", "avg", "pass", "maj", "weighted", "best"]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    with pytest.raises(ValueError, match="no problem has a gold answer"):
        compute_curves(FoundRun(Path("run"), "", {}, "done", None, None, None, results=[ProblemResult(id="p")]))


@pytest.mark.parametrize("table_format", ["csv", "parquet"])
def test_exported_rows_are_those_of_the_results(tmp_path: Path, table_format: str) -> None:
    make_run(tmp_path / "0", 4, [True, False])
    make_run(tmp_path / "1", 8, [True, True, True], search="ets")
    files = export_rows(find_runs([tmp_path]), tmp_path / "tables", table_format)
    assert [file.name for file in files] == [f"problems.{table_format}", f"samples.{table_format}"]
    if table_format == "csv":
        with files[0].open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(row["search"], row["usage.tokens"]) for row in rows] == 2 * [("rebase", "400")] + 3 * [("ets", "800")]
    else:
        columns = parquet.read_table(files[0]).to_pydict()
        assert columns["search"] == 2 * ["rebase"] + 3 * ["ets"]
        assert columns["usage.tokens"] == 2 * [400] + 3 * [800]
        assert np.mean(columns["is_correct"]) == pytest.approx(0.8)

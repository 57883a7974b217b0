"""Rows survive a process killed at any byte, and a file is never half written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reason.runs.json_files import safe_file_name, write_json
from reason.runs.result import ProblemResult, ResultFile

RESULTS = [
    ProblemResult(id="a", text="one\nline: ü \u2028"),
    ProblemResult(id="b/1"),
    ProblemResult(id="c", text="\ud800"),
]


def written(folder: Path) -> ResultFile:
    results = ResultFile(folder / "results.jsonl")
    for result in RESULTS:
        results.append_result(result)
    return results


def test_result_rows_are_read_back_unchanged(tmp_path: Path) -> None:
    assert list(written(tmp_path).read_results().values()) == RESULTS
    assert ResultFile(tmp_path / "none.jsonl").read_results() == {}


def test_result_file_cut_at_any_byte_keeps_whole_rows_and_can_be_appended(tmp_path: Path) -> None:
    whole = written(tmp_path).path.read_bytes()
    for cut in range(len(whole)):
        results = ResultFile(tmp_path / "cut.jsonl")
        results.path.write_bytes(whole[:cut])
        whole_rows = results.read_results()
        assert len(whole_rows) == whole[:cut].count(b"\n")
        results.append_result(RESULTS[2])
        assert list(results.read_results()) == list(dict.fromkeys([*whole_rows, "c"]))


def test_invalid_line_in_the_middle_of_a_result_file_is_an_error(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "results.jsonl")
    results.path.write_text('{"id": "a"}\nrubbish\n{"id": "b"}\n')
    with pytest.raises(ValueError, match="line 2: not a result row"):
        results.read_results()


def test_last_row_of_a_problem_counts_and_order_is_restored(tmp_path: Path) -> None:
    results = written(tmp_path)
    results.append_result(ProblemResult(id="a", text="again"))
    rows = results.reorder_results(["c", "never", "a", "b/1"])
    assert [(row.id, row.text) for row in rows] == [("c", "\ud800"), ("a", "again"), ("b/1", "")]
    assert list(results.read_results().values()) == rows


def test_atomic_write_replaces_a_file_and_leaves_no_other_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "summary.json"
    write_json(file, {"a": 1})
    write_json(file, {"a": 2})
    assert json.loads(file.read_text()) == {"a": 2}
    assert [f.name for f in file.parent.iterdir()] == ["summary.json"]


def test_safe_file_names_are_safe_and_distinct() -> None:
    ids = ["a/b", "a_b", "../x", "..", ".hidden", "x" * 300, "x" * 301, "é", "a b", ""]
    names = [safe_file_name(i) for i in ids]
    assert len(set(names)) == len(ids)
    assert all("/" not in name and not name.startswith(".") and 0 < len(name) < 200 for name in names)

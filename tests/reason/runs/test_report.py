"""Many runs on one page: which runs are found, their labels, the Pareto front, and broken runs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from reason.problem import Problem
from reason.runs.export_trees import export_trees
from reason.runs.gather import COSTS, find_differences, find_runs, format_label, measure_results, pareto_front
from reason.runs.json_files import REFUSED, write_json
from reason.runs.pages.report import front_of_runs, report_page
from reason.runs.result import ResultFile
from reason.runs.run import TaskRun
from reason.runs.summary import summarise_results
from reason.tasks.base import Task
from search.tree import SearchTree
from search.tree_export import shape_statistics
from tests.support.paths import ROOT
from tests.support.run_folders import make_run
from tests.support.toy_solver import toy_solver


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two finished runs, one with a half-written line, one broken, one without a result."""
    home = tmp_path / "multirun"
    make_run(home / "0", 4, [True, False] * 5)
    make_run(home / "1", 8, [True] * 8 + [False] * 2, search="ets")
    file = make_run(home / "2", 16, [False] * 4, stopped=None) / "results.jsonl"
    file.write_text(file.read_text() + '{"id": "p/9", "gr')
    (make_run(home / "3", 16, [], search="mcts") / "results.jsonl").write_text("nonsense\n")
    make_run(home / "4", 64, [], stopped=None)
    return home


def test_find_runs_finds_every_run_and_changes_no_file(runs: Path) -> None:
    before = {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}
    runs_found = find_runs([runs])
    assert [run.folder.name for run in runs_found] == ["0", "1", "2", "3", "4"]
    assert [run.state for run in runs_found] == ["done", "done", "unfinished", "done", "unfinished"]
    assert [run.broken and run.broken.split(":")[0] for run in runs_found] == [
        None, None, None, "ValueError", "no result yet",
    ]  # fmt: skip
    whole, better, half = (run.measured for run in runs_found[:3])
    assert whole is not None
    assert whole.accuracy is not None
    assert (whole.accuracy.value, whole.costs["tokens"], whole.costs["kv"], whole.problems) == (0.5, 400, 90, 10)
    assert half is not None
    assert half.problems == 4  # the half-written one waits
    assert better is not None
    assert {file: file.read_bytes() for file in before} == before
    assert find_runs([runs, runs / "0"])[0].folder == runs_found[0].folder  # a run named twice is there once
    assert len(find_runs([runs, runs / "0"])) == 5


def test_refused_job_of_a_sweep_is_listed_with_the_reason(runs: Path) -> None:
    write_json(runs / "5" / REFUSED, {"overrides": ["search.n=0"], "error": "search.n must be an int >= 1, got 0"})
    refused = find_runs([runs])[-1]
    assert (refused.label, refused.state) == ("search.n=0", "refused")
    assert refused.broken == "search.n must be an int >= 1, got 0"


def test_run_labels_hold_the_settings_that_differ() -> None:
    one = {"search": {"n": 4, "width": 2}, "seed": 0}
    other = {"search": {"n": 8, "penalty": 1}, "seed": 0}

    def labels(runs: list[tuple[dict[str, Any], dict[str, str]]]) -> list[str]:
        return [format_label(differences) for differences in find_differences(runs)]

    assert labels([(one, {"search": "rebase"}), (other, {"search": "ets"})]) == [
        "search=rebase search.n=4",
        "search=ets search.n=8",
    ]
    more = [(one, {"search": "rebase"}), ({**one, "seed": 1}, {"search": "rebase"}), (other, {"search": "ets"})]
    assert labels(more) == [
        "search=rebase search.n=4 seed=0",
        "search=rebase search.n=4 seed=1",
        "search=ets search.n=8 seed=0",
    ]
    assert labels([(one, {"search": "rebase"})]) == ["run"]


def test_pareto_front_holds_runs_that_no_other_run_dominates() -> None:
    rng = random.Random(0)
    for _ in range(200):
        points = [(float(rng.randrange(6)), rng.randrange(6) / 5) for _ in range(rng.randrange(1, 9))]

        def beaten(i: int, points: list[tuple[float, float]] = points) -> bool:
            (cost, accuracy) = points[i]
            return any(
                (c <= cost and a >= accuracy and (c, a) != (cost, accuracy)) or ((c, a) == (cost, accuracy) and j < i)
                for j, (c, a) in enumerate(points)
            )

        assert sorted(pareto_front(points)) == [i for i in range(len(points)) if not beaten(i)]


def test_report_page_holds_every_run_with_a_link(runs: Path) -> None:
    runs_found = find_runs([runs])
    assert front_of_runs(runs_found, "tokens") == [0, 1]
    page = report_page(runs_found, "five runs", runs)
    data = json.loads(page.split('<script id="data" type="application/json">')[1].split("</script>")[0])
    assert [run["href"] for run in data["runs"]] == ["0/index.html", "1/index.html", None, "3/index.html", None]
    assert set(data["fronts"]) == set(COSTS)


def test_report_script_writes_page_and_table(runs: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "report.py")]
    done = subprocess.run([*command, str(runs)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "| search=ets search.n=8 | done | 0.800 |" in (runs / "report.md").read_text()
    assert (runs / "report.html").stat().st_size > 5000
    for wrong, message in ((tmp_path / "none", "there is no such folder"), (runs / "4" / "..", None)):
        done = subprocess.run([*command, str(wrong)], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == (2 if message else 0)
        assert (message or "") in done.stderr


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run of the toy solver over two problems."""
    problems = [Problem(id=f"toy/{i}", question=f"What is {i}?", answer=str(i)) for i in range(2)]
    with toy_solver() as solver:
        run = TaskRun(solver, Task("toy", problems), tmp_path / "run", run_metadata={"task": "toy", "seed": 0})
        list(run.solve_missing())
        run.finish_run()
    return tmp_path / "run"


def test_trees_are_exported_for_networkx_and_graphviz(run_folder: Path, tmp_path: Path) -> None:
    saved = {file.stem: json.loads(file.read_text()) for file in (run_folder / "trees").glob("*.json")}
    graphs = export_trees(run_folder, tmp_path / "graphs", "graphml")
    assert [file.stem for file in graphs] == sorted(saved)
    for file in graphs:
        graph = nx.read_graphml(file, node_type=int)
        assert graph.number_of_nodes() == len(saved[file.stem]["nodes"]) + 1  # and the prompt
    for file in export_trees(run_folder, tmp_path / "drawings", "dot"):
        lines = file.read_text().splitlines()
        assert lines[0] == "digraph search_tree {"
        assert sum("->" in line for line in lines) == len(saved[file.stem]["nodes"])
        assert any("style=bold" in line for line in lines)
    with pytest.raises(ValueError, match="there are no trees"):
        export_trees(tmp_path, tmp_path / "graphs", "dot")


def test_the_shape_of_the_trees_is_in_rows_summary_index_and_report(run_folder: Path) -> None:
    results = list(ResultFile(run_folder / "results.jsonl").read_results().values())
    shapes = [
        shape_statistics(SearchTree.from_dict(json.loads(f.read_text()))) for f in run_folder.glob("trees/*.json")
    ]
    assert sorted(map(str, shapes)) == sorted(str(result.shape) for result in results)
    depth = sum(shape.max_depth for shape in shapes) / 2
    assert summarise_results(results)["tree_shape"]["depth"] == depth
    assert measure_results(results).shape["depth"] == depth
    assert f"depth {depth:.1f}, branching" in (run_folder / "index.html").read_text()


def test_report_script_exports_trees(run_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), "trees"]
    arguments = [str(run_folder), "--format", "dot", "--out", str(tmp_path / "dots")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "dots").glob("*.dot"))) == 2
    wrong = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert wrong.returncode == 2
    assert "there are no trees" in wrong.stderr

"""The benchmark scripts run, on sizes too small for conclusions, and end with one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.paths import SCRIPTS


def run(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "bench" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_bench_engine_reports_ratios_and_ends_with_json(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    sizes = ["--branches", "1,2", "--prompt", "24", "--new", "6", "--repeats", "1", "--threads", "1"]
    done = run("engine.py", *sizes, "--out", str(report), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [point["branches"] for point in result["points"]] == [1, 2]
    assert "generate" in report.read_text()


def test_bench_decoders_reports_ratios_and_ends_with_json(tmp_path: Path) -> None:
    done = run("decoders.py", "--branches", "1,2", "--prompt", "24", "--new", "4", "--repeats", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [point["branches"] for point in result["points"]] == [1, 2]
    assert [len(point["speedups"]) for point in result["points"]] == [2, 2]


def test_bench_speculation_reports_goals_and_ends_with_json(tmp_path: Path) -> None:
    sizes = ["--quick", "--trajectories", "2", "--max-tokens", "8", "--nodes", "4", "--live", "1,2", "--threads", "1"]
    tuning = ["--tuning-trajectories", "1", "--tuning-nodes", "8", "--templates", "templates"]
    names = [
        "--drafter-setups",
        "stand_coupled,stand_rejection",
        "--speed-setups",
        "stand,oracle",
        "--out",
        "report.md",
    ]
    done = run("speculation.py", *sizes, *tuning, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [row["setup"] for row in result["acceptance"]] == ["stand_coupled", "stand_rejection"]
    assert [row["live"] for row in result["speed"]] == [1, 1, 2, 2]
    assert {row["num_differing"] for row in result["speed"]} == {0}
    assert (tmp_path / "templates" / "stand_rejection_1.json").exists()
    assert "| verdict |" in (tmp_path / "report.md").read_text()


def test_tune_tree_writes_a_template_and_ends_with_json(tmp_path: Path) -> None:
    sizes = ["--problems", "1", "--trajectories", "1", "--max-tokens", "8", "--start", "12", "--keep", "6"]
    done = run("tune_tree.py", *sizes, "--threads", "1", "--out", "tree.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    tree = json.loads((tmp_path / "tree.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == tree
    assert len(tree["parents"]) == len(tree["ranks"]) == len(tree["counts"]) == 6
    assert tree["about"]["temperature"] == 1.0

"""The bench runs, on sizes too small to mean anything, and ends with one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_bench_engine_reports_ratios_and_ends_with_json(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    sizes = ["--branches", "1,2", "--prompt", "24", "--new", "6", "--repeats", "1", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench.py"), "engine", *sizes, "--out", str(report)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [point["branches"] for point in result["points"]] == [1, 2]
    assert "generate" in report.read_text()

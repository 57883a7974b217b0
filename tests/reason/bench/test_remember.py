"""What the table of an earlier run is worth: sums over seeds, and a whole small measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from reason.bench.remember import RememberBench, TableGain, measure_seed, summarize_gains
from reason.bench.remember_report import format_report
from reason.commands.bench import remember


def test_gains_of_seeds_are_summed_by_case() -> None:
    gains = [TableGain("same", 0, 4.0, 2.0), TableGain("similar", 0, 3.0, 2.0), TableGain("same", 1, 2.0, 2.0)]
    same, similar = summarize_gains(gains)
    assert same == {"case": "same", "seeds": 2, "remembering": 3.0, "without": 2.0, "lowest": 1.0, "highest": 2.0}
    assert similar["seeds"] == 1
    result = {"problems": 1, "samples": 1, "nodes": 8, "noise": 0.1, "machine": {"cpus": 2}, "cases": [same, similar]}
    *_, fence, figures, end = format_report(result, "reason bench remember").splitlines()
    assert (fence, end) == ("```json", "```")
    assert json.loads(figures) == result
    assert "| same | 2 | 3.00 | 2.00 | 1.50 (1.00 to 2.00) |" in format_report(result, "reason bench remember")


def test_a_table_helps_with_its_own_problems_also_after_weights_have_changed() -> None:
    gains = list(measure_seed(RememberBench(problems=1, samples=2, decays=(0.5,)), 0))
    cases = ["first run, nothing to begin with", "the same problems", "similar problems"]
    assert [gain.case for gain in gains] == [*cases, "the same problems, other weights, decay 0.5"]
    first, same, _, changed = gains
    assert first.remembering == first.without
    assert same.remembering > 1.2 * same.without
    assert changed.remembering > changed.without


def test_command_writes_a_report_and_ends_with_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reason.bench.remember.measure_seed", lambda bench, seed: [TableGain("same", seed, 3.0, 2.0)])
    args = remember.make_parser().parse_args(["--seeds", "2", "--decays", "0.9,0.5", "--out", str(tmp_path / "r.md")])

    result = remember.bench_remember(args, Console())
    assert capsys.readouterr().out.startswith("2 seeds x 8 runs x 30 problems = 480\n")
    assert result["decays"] == (0.9, 0.5)
    assert json.dumps(result) in (tmp_path / "r.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        remember.make_parser().parse_args(["--decays", "1"])

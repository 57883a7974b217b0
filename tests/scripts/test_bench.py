"""The benchmark scripts run, on sizes too small for conclusions, and end with one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("model", [["--model", "bundled:draft"], ["--shape", "miniature"]])
def test_bench_decoders_reports_ratios_and_ends_with_json(model: list[str], tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    sizes = ["--branches", "1,2", "--prompt", "24", "--new", "4", "--repeats", "2"]
    done = run("decoders.py", *model, *sizes, "--out", str(report), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [point["branches"] for point in result["points"]] == [1, 2]
    for point in result["points"]:
        for part in ("round", "prompt", "cpu"):
            assert point[part]["compiled"]["slower"] == [1, 1]
            assert len(point[part]["eager"]["slower"]) == 2
        # a round is a difference, which a busy machine may make negative where it takes a millisecond
        for part in ("prompt", "cpu"):
            assert point[part]["compiled"]["median"] > 0 < point[part]["eager"]["median"]
    assert f"{model[1]}, float32" in report.read_text()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--new", "1"], "--new must be at least 2, got 1"),
        (["--decoders", "eager"], "--decoders must be two or more of compiled, eager, compiled:bfloat16, "),
        (["--decoders", "eager,fast"], "--decoders must be of compiled, eager, compiled:bfloat16, eager:bfloat16"),
        (["--shape", "qwen9"], "shape must be one of qwen2.5-0.5b, "),
    ],
)
def test_bench_decoders_refuses_what_it_cannot_measure(wrong: list[str], message: str, tmp_path: Path) -> None:
    done = run("decoders.py", *wrong, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(message)


def test_bench_start_measures_the_first_line_and_the_end(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    done = run("start.py", "--cases", "help,wrong_setting", "--repeats", "2", "--out", str(report), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert [case["case"] for case in cases] == ["help", "wrong_setting"]
    for case in cases:
        assert 0 < case["silence"] <= case["total"]
        assert case["first_line"] <= case["total"]
        assert 10 < case["peak_mb"] < 1000
    assert "| reason solve --help |" in report.read_text()
    wrong = run("start.py", "--cases", "no_such", cwd=tmp_path)
    assert "--cases must be of help, wrong_setting, doctor, question, first_run, got no_such" in wrong.stderr


def test_bench_serving_counts_requests_and_tokens_of_servers_in_turns(tmp_path: Path) -> None:
    report, sizes = tmp_path / "report.md", ["--presets", "single", "--clients", "1,3", "--requests", "6"]
    servers = ["--server", "speculation=off", "--server", "speculation=off serve.concurrency=1", "--repeats", "1"]
    done = run("serving.py", *sizes, *servers, "--out", str(report), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert [(case["clients"], case["server"]) for case in cases] == [(n, servers[s]) for n in (1, 3) for s in (1, 3)]
    for case in cases:
        (turn,) = case["turns"]
        assert (turn["requests"], len(turn["latencies"])) == (6, 6)
        assert 0 < turn["latencies"][0] <= case["p50_s"] <= case["p99_s"] <= turn["seconds"]
    # the same questions and seeds are the same texts
    assert [case["turns"][0]["tokens"] for case in cases[::2]] == [case["turns"][0]["tokens"] for case in cases[1::2]]
    assert "| single | 3 | speculation=off |" in report.read_text()
    wrong = run("serving.py", "--presets", "no_such", "--repeats", "1", cwd=tmp_path)
    assert "the server answered 404" in wrong.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what memory is a process's own")
def test_bench_load_measures_seconds_and_memory(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    loaders = ["compiled", "eager", "transformers"]
    done = run(
        "load.py", "--shapes", "miniature", "--loaders", ",".join(loaders), "--repeats", "1", "--out", str(report),
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (case,) = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert [loader["loader"] for loader in case["loaders"]] == loaders
    for loader in case["loaders"]:
        assert loader["seconds"] > 0
        assert 10 < loader["kept_mb"] <= loader["peak_mb"] < 2000
    assert "| miniature |" in report.read_text()
    wrong = run("load.py", "--shapes", "qwen9", cwd=tmp_path)
    assert "shape must be one of qwen2.5-0.5b, " in wrong.stderr


def test_bench_bookkeeping_counts_the_steps_of_each_strategy(tmp_path: Path) -> None:
    names = ["best_of_n", "rebase", "mcts"]
    done = run(
        "bookkeeping.py",
        "--strategies",
        *names,
        "--widths",
        "2,4",
        "--depth",
        "3",
        "--repeats",
        "2",
        "--out",
        "b.md",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    points = json.loads(done.stdout.splitlines()[-1])["points"]
    assert [(point["strategy"], point["width"]) for point in points] == [(name, n) for n in (2, 4) for name in names]
    assert [point["branch_steps"] for point in points[:2]] == [2, 2 * 3]
    assert all(point["us_per_step"] > 0 < point["bytes_per_node"] for point in points)
    assert [point["nodes"] for point in points[:2]] == [2, 2 * 3]
    assert all(point["bytes_per_node"] == point["peak_bytes"] / point["nodes"] for point in points)
    assert "| mcts | 4 |" in (tmp_path / "b.md").read_text()
    wrong = run("bookkeeping.py", "--strategies", "no_such", cwd=tmp_path)
    assert wrong.returncode != 0
    assert "--strategies must be of best_of_n" in wrong.stderr


def test_bench_sampling_draws_the_tokens_of_the_definition(tmp_path: Path) -> None:
    done = run("sampling.py", "--rows", "1,3", "--vocab", "1500", "--repeats", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    points = json.loads(done.stdout.splitlines()[-1])["points"]
    assert [point["equal_tokens"] for point in points] == [1] * 5 + [3] * 5


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


def test_bench_puppet_reports_drafters_and_ends_with_json(tmp_path: Path) -> None:
    sizes = ["--shape", "miniature", "--branches", "1,2", "--laps", "2", "--trajectories", "2", "--max-tokens", "8"]
    done = run("puppet.py", *sizes, "--drafters", "stand", "--threads", "1", "--out", "report.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [(row["live"], row["setup"], len(row["speeds"])) for row in result["speed"]] == [
        (1, "plain", 2), (1, "stand", 2), (2, "plain", 2), (2, "stand", 2),
    ]  # fmt: skip
    assert {row["num_differing"] for row in result["speed"]} == {0}
    assert result["settings"]["branches"] == [1, 2]
    assert "differ from plain decoding: 0 of" in (tmp_path / "report.md").read_text()


def test_bench_puppet_searches_and_refuses_unknown_names(tmp_path: Path) -> None:
    sizes = ["--shape", "miniature", "--search", "ets", "--width", "4", "--laps", "1", "--drafters", "stand"]
    done = run("puppet.py", *sizes, "--max-tokens", "60", "--threads", "1", "--out", "report.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])["searches"]
    names = [(row["search"], row["setup"], row["num_differing"]) for row in rows]
    assert names == [("ets", "off", 0), ("ets", "stand", 0)]
    assert "| ets | stand |" in (tmp_path / "report.md").read_text()
    for wrong, message in (
        (["--shape", "giant"], "shape must be one of qwen2.5-0.5b, "),
        (["--shape", "miniature", "--recordings", "none.jsonl"], "none.jsonl: No such file"),
        (["--shape", "miniature", "--drafters", "oracles"], "--drafters must be of stand, "),
    ):
        done = run("puppet.py", *wrong, "--threads", "1", cwd=tmp_path)
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_trace_round_writes_markdown_and_ends_with_json(tmp_path: Path) -> None:
    sizes = ["--models", "qwen2.5-0.5b", "--branches", "2", "--nodes", "0,3", "--attention", "segments"]
    card = ["--card", "mine", "--bandwidth", "1", "--peak", "100", "--launch-us", "1"]
    done = run("trace_round.py", *sizes, *card, "--phases", "--out", "report.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [(point["workload"], point["nodes"], point["rows"]) for point in result["rounds"]] == [
        ("best_of_n", 0, 2), ("best_of_n", 3, 8), ("search", 0, 2), ("search", 3, 8)
    ]  # fmt: skip
    assert all(0 < point["roofline_ms"] <= point["kernels_ms"] <= point["estimate_ms"] for point in result["rounds"])
    assert "| best_of_n | 2 | 3 | copy out |" in (tmp_path / "report.md").read_text()


def test_trace_round_names_valid_models_and_cards(tmp_path: Path) -> None:
    for wrong, valid in (
        (["--models", "gpt"], "qwen2.5-7b"),
        (["--card", "abacus"], "h100"),
        (["--peak", "1"], "both"),
    ):
        done = run("trace_round.py", *wrong, cwd=tmp_path)
        assert done.returncode == 1
        assert valid in done.stderr


def test_host_round_reports_phases_and_ends_with_json(tmp_path: Path) -> None:
    sizes = ["--branches", "1,2", "--contexts", "60,120", "--rounds", "2", "--warmup", "1", "--nodes", "2"]
    done = run("host_round.py", *sizes, "--attention", "segments", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    points = json.loads(done.stdout.splitlines()[-1])["points"]
    expected = [(option, n, context) for option in ("off", "stand") for n in (1, 2) for context in (60, 120)]
    assert [(point["speculation"], point["branches"], point["context"]) for point in points] == expected
    assert all(point["rows"] >= point["branches"] for point in points)


def test_whole_runs_compares_with_plain_runs_and_ends_with_json(tmp_path: Path) -> None:
    sizes = ["--workloads", "question", "--pairs", "1", "--set", "search.n=2", "--set", "budget.tokens=40"]
    done = run("whole_runs.py", *sizes, "--out", "report.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.startswith("3 runs of a pair\n")
    (workload,) = json.loads(done.stdout.splitlines()[-1])["workloads"]
    assert (workload["workload"], workload["pairs"]) == ("question", 1)
    assert all(workload[clock]["median"] > 0 for clock in ("wall", "wall_plain", "cpu", "cpu_plain", "estimated"))
    assert 0 < workload["tokens"] <= 40
    assert workload["rounds"] <= workload["plain_rounds"]
    assert (workload["num_differing"], workload["problems"]) == (0, 1)
    report = (tmp_path / "report.md").read_text()
    *_, fence, figures, end = report.splitlines()
    assert (fence, end) == ("```json", "```")
    assert json.loads(figures) == json.loads(done.stdout.splitlines()[-1])
    (row,) = [line for line in report.splitlines() if line.startswith("| question |")]
    for clock in ("wall", "wall_plain", "cpu", "cpu_plain", "estimated"):
        assert f"{workload[clock]['median']:.2f} ({workload[clock]['low']:.2f} to" in row


def test_whole_runs_names_valid_workloads(tmp_path: Path) -> None:
    done = run("whole_runs.py", "--workloads", "night", cwd=tmp_path)
    assert done.returncode == 1
    assert "--workloads must be of default, question" in done.stderr


def test_tune_tree_writes_a_template_and_ends_with_json(tmp_path: Path) -> None:
    sizes = ["--problems", "1", "--trajectories", "1", "--max-tokens", "8", "--start", "12", "--keep", "6"]
    done = run("tune_tree.py", *sizes, "--threads", "1", "--out", "tree.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    tree = json.loads((tmp_path / "tree.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == tree
    assert len(tree["parents"]) == len(tree["ranks"]) == len(tree["counts"]) == 6
    assert tree["about"]["temperature"] == 1.0

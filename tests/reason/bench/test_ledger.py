"""Finished runs in a file: nothing that a report reads is lost, runs of sessions add up, and settings never mix."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Usage
from reason import ConfigError
from reason.bench.comparison import RunSource
from reason.bench.evaluation import compare_at_equal_tokens, summarize_run
from reason.bench.ledger import Ledger
from reason.bench.run_line import pack_ints, pack_run, unpack_ints, unpack_run
from reason.bench.runs import RunOutcome, RunSpec
from reason.grading import Grade
from reason.runs.result import ProblemResult, SampleResult
from search.kv import KVFootprint

COMMON = ("speculation=off", "limit=9")
MACHINE = {"cpus": 2}


def make_run(search: str, width: int, *, num_problems: int = 9, seed: int | None = None, draws: int = 0) -> RunOutcome:
    """A run with made-up rows, the same for equal arguments."""
    rng = random.Random(f"{search} {width} {draws}")
    rows = []
    for i in range(num_problems):
        samples = tuple(
            SampleResult(node=0, answer=answer, grade="right" if answer == "1" else "wrong", score=score)
            for answer, score in (
                (rng.choice([None, "1", "2", "30"]), rng.choice([None, round(rng.random() ** 9, 6)]))
                for _ in range(width)
            )
        )
        rows.append(
            ProblemResult(
                id=f"synthetic/{i}",
                gold="1",
                grade=Grade(rng.choice(["right", "wrong"])),
                samples=samples,
                usage=Usage(
                    tokens=rng.randint(width * 50, width * 130),
                    forwards=rng.randint(width * 50, width * 130),
                    scorer_calls=rng.randint(width, 5 * width),
                    scored_tokens=rng.randint(width * 30, width * 90),
                    seconds=round(rng.random() * 9, 2),
                ),
                kv=KVFootprint(
                    frontier_tokens=rng.randint(200, 3000),
                    kept_tokens=rng.randint(200, 3000),
                    peak_tokens=rng.randint(200, 5000),
                ),
                metadata={"task": "t", "model": "m", "scorer": "s", "speculation": "off", "seed": 0},
            )
        )
    totals = {"seconds": 20.0, "forwards": 90, "tokens": 999, "busy": 0.9, "solved": num_problems}
    return RunOutcome(RunSpec(search, width, COMMON, seed), rows, totals, [])


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3), min_size=1, max_size=4))
def test_integers_survive_packing(table: list[list[int]]) -> None:
    assert unpack_ints(pack_ints(table), len(table)).tolist() == table


@pytest.mark.parametrize("draws", range(20))
def test_line_has_all_that_a_comparison_reads(draws: int) -> None:
    samples, run = make_run("best_of_n", 8, draws=draws), make_run("rebase", 4, draws=draws)
    lines = [json.loads(json.dumps(pack_run(one))) for one in (samples, run)]
    samples_again, run_again = (unpack_run(line, one.spec, 9) for line, one in zip(lines, (samples, run), strict=True))
    assert summarize_run(run_again) == summarize_run(run)
    assert summarize_run(samples_again) == summarize_run(samples)
    assert compare_at_equal_tokens(run_again, samples_again) == compare_at_equal_tokens(run, samples)


def test_two_hundred_runs_of_four_hundred_problems_take_two_megabytes() -> None:
    assert len(json.dumps(pack_run(make_run("rebase", 64, num_problems=400)))) < 9_000
    assert len(json.dumps(pack_run(make_run("best_of_n", 80, num_problems=400)))) < 160_000


def test_runs_of_two_sessions_add_up(tmp_path: Path) -> None:
    file = tmp_path / "new" / "ledger.jsonl"
    one, other = Ledger(file), Ledger(file)  # both opened before either has added a run
    one.add(make_run("rebase", 4), MACHINE, has_all=False)
    other.add(make_run("ets", 4), MACHINE, has_all=False)
    ledger = Ledger(file)
    for search in ("rebase", "ets"):
        run = ledger.find(RunSpec(search, 4, COMMON), 9)
        assert run is not None
        assert summarize_run(run) == summarize_run(make_run(search, 4))
    assert len(file.read_bytes().splitlines()) == 2


def test_longer_run_takes_the_place_of_a_shorter_one(tmp_path: Path) -> None:
    ledger, spec = Ledger(tmp_path / "ledger.jsonl"), RunSpec("rebase", 4, COMMON)
    for num_problems in (4, 9, 6):
        ledger.add(make_run("rebase", 4, num_problems=num_problems), MACHINE, has_all=False)
        ledger.add(make_run("ets", 4, num_problems=4), MACHINE, has_all=False)
    again = Ledger(tmp_path / "ledger.jsonl")
    assert len((tmp_path / "ledger.jsonl").read_bytes().splitlines()) == 2
    run = again.find(spec, 5)
    assert run is not None
    assert len(run.rows) == 5
    assert again.find(spec, 9) is not None
    assert again.find(spec, 10) is None
    assert again.find(RunSpec("ets", 4, COMMON), 5) is None


def test_lines_of_two_copies_can_be_put_together(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.jsonl" for name in ("one", "other", "both")]
    for file, num_problems in zip(files, (9, 4), strict=False):
        Ledger(file).add(make_run("rebase", 4, num_problems=num_problems), MACHINE, has_all=False)
    for order in (files[:2], files[1::-1]):
        files[2].write_bytes(b"".join(file.read_bytes() for file in order))
        run = Ledger(files[2]).find(RunSpec("rebase", 4, COMMON), 9)
        assert run is not None
        assert len(run.rows) == 9


def test_task_with_few_problems_is_whole_with_them(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(make_run("rebase", 4), MACHINE, has_all=True)
    run = ledger.find(RunSpec("rebase", 4, COMMON), 400)
    assert run is not None
    assert len(run.rows) == 9


def test_number_of_problems_is_no_setting_and_everything_else_is(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(make_run("rebase", 4), MACHINE, has_all=False)
    spec = RunSpec("rebase", 4, ("speculation=off", "limit=5"))
    assert ledger.find(spec, 5) is not None
    assert ledger.find(replace(spec, seed=0), 5) is not None  # 0 is the default
    others = [
        replace(spec, seed=1),
        replace(spec, width=5),
        replace(spec, search="rebase search.temperature=1"),
        replace(spec, common=("speculation=off", "scorer=expectation")),
    ]
    assert [ledger.find(other, 5) for other in others] == [None] * 4
    assert ledger.find_other_settings(others) == ["scorer=expectation"]


def test_run_under_other_defaults_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    Ledger(file).add(make_run("rebase", 4), MACHINE, has_all=False)
    line = json.loads(file.read_text())
    file.write_text(json.dumps(line | {"config": "that of another day"}) + "\n")
    spec = RunSpec("rebase", 4, COMMON)
    with pytest.raises(ConfigError, match="rebase 4 with these settings, but other defaults"):
        Ledger(file).find(spec, 9)
    assert Ledger(file, accepts_older=True).find(spec, 9) is not None


@pytest.mark.parametrize("broken", ["{", "[]", "{}", '{"search": "ets"}'])
def test_broken_line_is_named(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "ledger.jsonl"
    Ledger(file).add(make_run("rebase", 4), MACHINE, has_all=False)
    file.write_bytes(file.read_bytes() + broken.encode() + b"\n")
    with pytest.raises(ConfigError, match="line 2: not a finished run"):
        Ledger(file)


def test_line_whose_numbers_are_broken_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    Ledger(file).add(make_run("rebase", 4), MACHINE, has_all=False)
    line = json.loads(file.read_text())
    for changes in ({"values": line["values"][:-9]}, {"ids": "no"}, {"columns": line["columns"][1:]}, {"values": 3}):
        file.write_text(json.dumps(line | changes) + "\n")
        with pytest.raises(ConfigError, match="the line of rebase 4 is broken"):
            Ledger(file).find(RunSpec("rebase", 4, COMMON), 9)


def test_finished_run_is_not_executed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[RunSpec] = []

    def execute(run: RunSpec, folder: Path, console: object, *, num_problems: int) -> RunOutcome:
        executed.append(run)
        return make_run(run.search, run.width, num_problems=num_problems, seed=run.seed)

    monkeypatch.setattr("reason.bench.comparison.execute_run", execute)
    spec = RunSpec("rebase", 4, COMMON)

    def source(seeds: list[int | None]) -> RunSource:
        from rich.console import Console

        return RunSource(tmp_path, Ledger(tmp_path / "ledger.jsonl"), seeds, MACHINE, Console(quiet=True))

    first = source([0, 1]).execute(spec, 9)
    assert [run.seed for run in executed] == [0, 1]
    assert source([0, 2]).find_missing(spec, 9) == "rebase 4, seeds 2"
    assert source([0, 1]).find_missing(spec, 9) is None
    assert source([0, 1]).execute(spec, 9).rows == first.rows
    assert len(executed) == 2
    source([0, 1, 2]).execute(spec, 9)
    assert [run.seed for run in executed] == [0, 1, 2]


def test_machines_of_the_runs_are_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(make_run("rebase", 4), {"cpus": 2, "gpu": None}, has_all=False)
    ledger.add(make_run("ets", 4), {"cpus": 8, "gpu": None}, has_all=False)
    specs = [RunSpec(search, 4, COMMON) for search in ("rebase", "ets", "dvts")]
    assert ledger.describe_machines(specs) == {"cpus": "2 and 8"}

"""Comparison of searches with thoughts by themselves: the arithmetic on made-up rows, and a whole small comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from decoding.core import Usage
from reason.bench.runs import RunOutcome, RunSpec
from reason.bench.single_thoughts import (
    ComparedSearch,
    ThoughtPool,
    choose_opponents,
    format_singles,
    join_seeds,
    plan_runs,
    pool_thoughts,
)
from reason.runs.metrics import GradedSample
from reason.runs.result import ProblemResult
from search.kv import KVFootprint
from tests.support.paths import SCRIPTS

PROBLEMS = 10


def row(problem: int, *, is_right: bool, tokens: int, answers: list[str]) -> ProblemResult:
    """A result row; the right answer is "1"."""
    return ProblemResult.from_json({
        "id": str(problem), "gold": "1", "grade": "right" if is_right else "wrong", "task": "t", "model": "m",
        "scorer": "s", "speculation": "off", "seed": 0, "error": None,
        "samples": [
            {"node": i, "answer": answer, "score": None, "grade": "right" if answer == "1" else "wrong"}
            for i, answer in enumerate(answers)
        ],
        "usage": asdict(Usage(tokens=tokens)),
        "kv": asdict(KVFootprint(steps=1, frontier_tokens=1, kept_tokens=1, peak_tokens=1)),
    })  # fmt: skip


def outcome(spec: RunSpec, rows: list[ProblemResult]) -> RunOutcome:
    return RunOutcome(spec, rows, {"seconds": 1.0}, [])


def make_pool(settings: str, share: float, tokens: float) -> ThoughtPool:
    """Ten thoughts a problem, so many of them right; the wrong ones are all different."""
    num_right = round(10 * share)
    samples = [GradedSample("1", True)] * num_right + [GradedSample(str(i), False) for i in range(2, 12 - num_right)]
    return ThoughtPool(settings, [samples] * PROBLEMS, tokens)


SHORT, LONG, LONGER = make_pool("", 0.6, 500), make_pool("waits", 0.5, 1000), make_pool("more", 0.4, 2000)


def make_run(tokens: float) -> ComparedSearch:
    return ComparedSearch("pdr", 2, np.array([1.0] * 9 + [0.0]), tokens)


@pytest.mark.parametrize(("tokens", "equal"), [(400, 500), (700, 1000), (1000, 1000), (1500, 2000), (9000, 2000)])
def test_single_thought_at_equal_tokens_has_no_fewer_where_one_is_so_long(tokens: int, equal: int) -> None:
    single, best, _ = choose_opponents(make_run(tokens), [SHORT, LONG, LONGER])
    assert single.tokens == equal
    assert best.tokens == 500
    assert best.values.mean() == pytest.approx(0.6)


def test_vote_is_over_as_many_thoughts_as_the_tokens_buy_rounded_up() -> None:
    _, _, vote = choose_opponents(make_run(1100), [SHORT])
    assert (vote.name, vote.tokens) == ("3 of plain", 1500)
    # of three, at least two are right, or one that ties with two different ones: 4/6 of all are right, 3 in 10 choose
    assert 0.6 < vote.values.mean() < 0.9
    assert choose_opponents(make_run(10**6), [SHORT])[2].tokens == 10 * 500


def test_problem_that_failed_has_no_thoughts_and_takes_none_from_the_vote_of_others() -> None:
    pool = ThoughtPool("", [[], *SHORT.samples[1:]], SHORT.tokens)
    vote = choose_opponents(make_run(1100), [pool])[2]
    whole = choose_opponents(make_run(1100), [SHORT])[2]
    assert (vote.name, vote.tokens) == (whole.name, whole.tokens)
    assert vote.values.tolist() == [0.0, *whole.values[1:]]
    text = format_singles([make_run(900)], [pool], command="c", machine={}, num_seeds=1)
    assert "| plain | 10 |" in text


def test_seeds_are_joined_per_problem() -> None:
    runs = plan_runs(["pdr a=b"], [4], [0, 1], ("x=y",))
    assert [spec.overrides[-2:] for spec in runs] == [["a=b", "seed=0"], ["a=b", "seed=1"]]
    outcomes = {
        spec: outcome(spec, [row(i, is_right=i < num, tokens=num, answers=["1", "2"]) for i in range(PROBLEMS)])
        for spec, num in zip(runs, (10, 5), strict=True)
    }
    (joined,) = join_seeds(outcomes, runs)
    assert joined.correct.tolist() == [1.0] * 5 + [0.5] * 5
    assert (joined.search, joined.width, joined.tokens) == ("pdr a=b", 4, 7.5)
    pool = pool_thoughts("s", list(outcomes.values()), 2)
    assert {len(samples) for samples in pool.samples} == {4}
    assert pool.tokens == 7.5 / 2


def test_report_names_the_difference_the_opponent_and_its_tokens() -> None:
    text = format_singles([make_run(900)], [SHORT, LONG], command="c", machine={"cpus": 2}, num_seeds=1)
    assert "| pdr | 2 | 0.900 ± 0.100 | 900 |" in text
    assert "to 0.500 of waits (1,000 tokens)" in text
    assert "+40.0 (" in text
    saved = json.loads(text.split("```json")[1].strip().removesuffix("```"))
    (search,) = saved["searches"]
    assert [round(opponent["value"], 2) for opponent in search["opponents"]][:2] == [0.4, 0.3]


def test_questions_of_a_file_are_compared(tmp_path: Path) -> None:
    """A file has no size to set."""
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(f'{{"question": "x0 = {n}. Find x0.", "answer": "{n}"}}\n' for n in (3, 4)))
    command = [
        sys.executable, str(SCRIPTS / "bench" / "single_thoughts.py"), "+task=file", f"task.path={file}",
        "--searches", "best_of_n", "--widths", "2", "--samples", "2", "--problems", "2",
        "--folder", str(tmp_path / "runs"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPTS.parent)
    assert done.returncode == 0, done.stderr
    assert "| best_of_n | 2 |" in done.stdout


def test_script_compares_and_continues(tmp_path: Path) -> None:
    command = [
        sys.executable, str(SCRIPTS / "bench" / "single_thoughts.py"), "model=thinker", "+task=puzzles",
        "task.difficulty=1", "--searches", "pdr search.rounds=1", "--widths", "1", "--samples", "1",
        "--problems", "2", "--folder", str(tmp_path / "runs"), "--out", str(tmp_path / "report.md"),
    ]  # fmt: skip
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPTS.parent)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == (tmp_path / "report.md").read_text().strip()
    assert "| pdr search.rounds=1 | 1 |" in done.stdout
    refused = subprocess.run([*command, "search.n=x"], capture_output=True, text=True, check=False, cwd=SCRIPTS.parent)
    assert refused.returncode == 2

"""Comparison of searches at equal tokens: the arithmetic on made-up rows, and a whole small comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from decoding.core import Usage
from reason.bench.evaluation import baseline_curve, compare_at_equal_tokens, summarize_run, tokens_to_reach
from reason.bench.evaluation_report import compare_with_samples, summary_sentences
from reason.bench.runs import RunOutcome, RunSpec
from reason.bench.thinking_report import format_budgets, plan_runs, summarize_budget
from reason.commands.bench import compare_routers
from reason.commands.bench.evaluate import common_settings, compare, make_parser
from reason.config.errors import ConfigError
from reason.runs.result import ProblemResult
from search.kv import KVFootprint
from tests.support.paths import SCRIPTS


def row(
    problem: int, grade: str, *, tokens: int, samples: list[tuple[str, float]], mean_kv: float = 100.0
) -> ProblemResult:
    """A result row; the gold answer is "1"; samples are (answer, score)."""
    return ProblemResult.from_json({
        "id": str(problem), "gold": "1", "grade": grade, "task": "t", "model": "m", "scorer": "s", "speculation": "off",
        "seed": 0, "error": None,
        "samples": [
            {"node": i, "answer": answer, "score": score, "grade": "right" if answer == "1" else "wrong"}
            for i, (answer, score) in enumerate(samples)
        ],
        "usage": asdict(Usage(tokens=tokens, forwards=tokens, scorer_calls=len(samples))),
        "kv": asdict(KVFootprint(steps=2, frontier_tokens=mean_kv, kept_tokens=mean_kv, peak_tokens=200)),
    })  # fmt: skip


def outcome(search: str, width: int, rows: list[ProblemResult]) -> RunOutcome:
    return RunOutcome(
        RunSpec(search, width), rows, {"seconds": 1.0, "forwards": 9, "kv_tokens_per_problem": 50.0}, [(0.1, 2, 0)]
    )


def samples(good: float, bad: float) -> list[tuple[str, float]]:
    """Four samples, one of them right."""
    return [("2", bad), ("3", bad), ("1", good), ("2", bad)]


BEST_OF_4 = outcome("best_of_n", 4, [row(i, "right", tokens=400, samples=samples(0.9, 0.2)) for i in range(40)])


def test_run_is_compared_with_as_many_samples_as_its_tokens_buy() -> None:
    run = outcome("rebase", 2, [row(i, "right", tokens=200, samples=[("1", 0.9)]) for i in range(40)])
    comparisons = {against.baseline: against for against in compare_at_equal_tokens(run, BEST_OF_4)}
    assert all(against.num_samples == 2 and against.enough_samples for against in comparisons.values())
    # of two samples of four, half of the pairs hold the right one, which scores best where it is
    assert comparisons["best-of-N"].difference.value == pytest.approx(0.5)
    assert comparisons["majority vote"].difference.value > 0.5


def test_run_that_spent_more_than_all_samples_is_marked() -> None:
    run = outcome("rebase", 2, [row(i, "right", tokens=900, samples=[("1", 0.9)]) for i in range(40)])
    assert [(a.num_samples, a.enough_samples) for a in compare_at_equal_tokens(run, BEST_OF_4)] == [(4, False)] * 3


def test_baseline_grows_with_its_samples_and_has_the_cost_of_an_accuracy() -> None:
    tokens, accuracy = baseline_curve(BEST_OF_4, "best-of-N")
    assert tokens == [100, 200, 400]
    assert accuracy == pytest.approx([0.25, 0.5, 1.0])
    assert tokens_to_reach(BEST_OF_4, "best-of-N", 0.75) == pytest.approx(200 * 2**0.5)
    assert tokens_to_reach(BEST_OF_4, "best-of-N", 0.2) == 100
    assert tokens_to_reach(BEST_OF_4, "majority vote", 0.9) is None


def test_run_summary_has_means_per_problem() -> None:
    summary = summarize_run(BEST_OF_4)
    assert (summary.accuracy, summary.low, summary.high) == (1.0, 1.0, 1.0)
    assert (summary.tokens, summary.forwards, summary.scorer_calls, summary.kept_kv) == (400, 400, 4, 100)


def test_sentences_name_the_best_search_and_the_others() -> None:
    good = outcome("rebase", 4, [row(i, "right", tokens=200, samples=[("1", 0.9)]) for i in range(40)])
    bad = outcome("mcts", 4, [row(i, "wrong", tokens=200, samples=[("2", 0.9)]) for i in range(40)])
    outcomes = [BEST_OF_4, good, bad]
    text = "\n".join(summary_sentences(outcomes, compare_with_samples(outcomes)))
    assert "furthest ahead of best-of-N is rebase 4: +50.0" in text
    assert "cheapest other search to reach that is rebase 4: 1.000 with 0.50 times the tokens" in text
    assert "Not better than samples for as many tokens or fewer, by the interval: mcts 4" in text


def test_samples_with_settings_of_their_own_are_compared_with_the_baseline() -> None:
    early = outcome(
        "best_of_n early_exit=converged", 4, [row(i, "right", tokens=200, samples=[("1", 0.9)]) for i in range(40)]
    )
    compared = compare_with_samples([BEST_OF_4, early])
    assert list(compared) == ["best_of_n early_exit=converged 4"]
    assert summary_sentences([BEST_OF_4], compare_with_samples([BEST_OF_4])) == [
        "Nothing is compared at equal tokens: only baselines ran, or no best-of-N."
    ]


@pytest.mark.slow
def test_whole_comparison_resumes_and_refuses_other_settings(tmp_path: Path) -> None:
    def evaluate(*more: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable, str(SCRIPTS / "bench" / "evaluate.py"), "--searches", "best_of_n", "ets", "--widths", "2",
            "--problems", "2", "--folder", str(tmp_path / "runs"), "--out", str(tmp_path / "report.md"), *more,
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    first = evaluate()
    assert first.returncode == 0, first.stderr
    assert "| ets | 2 |" in first.stdout
    assert first.stderr.startswith("3 runs x 2 problems = 6; the same command continues a stopped comparison\n")
    assert (tmp_path / "report-accuracy.png").stat().st_size > 1000
    assert (tmp_path / "runs" / "ets-2" / "index.html").exists()
    again = evaluate()
    assert "[1/2]" not in again.stderr

    def runs(text: str) -> Any:
        return json.loads(text.split("```json")[1].split("```")[0])["runs"]

    assert runs(again.stdout) == runs(first.stdout)
    ledger, elsewhere = ["--ledger", str(tmp_path / "ledger.jsonl")], ["--folder", str(tmp_path / "none")]
    assert "has 0 of 3 searches" in (imported := evaluate(*ledger)).stderr
    assert "[1/2]" not in imported.stderr
    report = evaluate(*ledger, *elsewhere, "--report-only")
    assert runs(report.stdout) == runs(imported.stdout)
    assert [(run["search"], run["accuracy"], run["tokens"]) for run in runs(report.stdout)] == [
        (run["search"], run["accuracy"], run["tokens"]) for run in runs(first.stdout)
    ]
    more = evaluate(*ledger, *elsewhere, "--report-only", "--widths", "2", "4", "--baseline", "3")
    assert "Not run yet: best_of_n 4; ets 4." in more.stdout
    assert not (tmp_path / "none").exists()
    other = evaluate("seed=5")
    assert other.returncode == 2
    assert "holds results of other settings" in other.stderr
    wrong = evaluate("search.depth=0")
    assert wrong.returncode == 2
    assert "depth" in wrong.stderr


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("beam_search 'step.stop=[a b]'", "beam_search step.stop=[a_b]"),
        (
            "mcts 'model.prompt.system=You are careful. Think in steps.'",
            "mcts 'model.prompt.system=You are careful. Think fast.'",
        ),
    ],
)
def test_searches_with_settings_that_are_alike_have_folders_of_their_own(one: str, other: str) -> None:
    assert RunSpec(one, 4).folder_name != RunSpec(other, 4).folder_name
    assert RunSpec("rebase search.temperature=1", 4, seed=2).folder_name == "rebase-temperature_1-4-seed_2"


def test_budgets_of_a_thought_are_compared_ended_by_force_and_cut() -> None:
    runs = plan_runs(["self_consistency", "rebase step=tokens"], [1, 8], [100, 200], ("limit=4",))
    assert len(runs) == 16
    assert len({spec.folder_name for spec in runs}) == 16
    forced = next(spec for spec, kind in runs.items() if kind == ("rebase step=tokens", "forced", 200))
    assert forced.overrides[:2] == ["search=rebase", "search.n=1"]
    assert {"step=tokens", "model.thinking.think_tokens=200", "limit=4"} < set(forced.overrides)
    points = [
        summarize_budget(outcome("self_consistency", 1, [row(0, grade, tokens=50, samples=[("1", 0.5)])]), *kind)
        for kind, grade in zip(runs.values(), ["right", "wrong"] * 8, strict=True)
    ]
    text = format_budgets(points, command="evaluate", machine={}, num_problems=1, plot=None)
    saved = json.loads(text.split("```json\n")[1].split("\n```")[0])["points"]
    assert [point["accuracy"] for point in saved] == [1.0, 0.0] * 8
    assert {(point["ending"], point["think_tokens"]) for point in saved} == {
        (ending, budget) for ending in ("forced", "cut") for budget in (100, 200)
    }


@pytest.mark.parametrize(
    ("settings", "task"),
    [
        ([], ["+task=synthetic", "task.size=90"]),
        (["+task=puzzles"], ["task.size=90"]),  # 60 by itself
        (["+task=synthetic_mixed"], []),  # 200 by itself; fewer would be other problems
        (["+task=puzzles", "task.size=70"], []),
        (["+task=math500"], []),
        (["+task=of_a_plugin"], []),
    ],
)
def test_generated_tasks_have_as_many_problems_as_are_compared(settings: list[str], task: list[str]) -> None:
    args = make_parser().parse_args([*settings, "--problems", "90"])
    assert common_settings(args) == ("speculation=off", *task, "limit=90", *settings)


def test_braces_of_a_setting_stay_as_they_are() -> None:
    prompt = "model.prompt.user='Solve {question} and {problems} in {}'"
    args = make_parser().parse_args([prompt])
    assert common_settings(args)[-1] == prompt
    assert compare_routers.common_settings([prompt], 9) == (
        "+task=synthetic_mixed", "scorer=expectation", "task.size=9", "limit=9", "concurrency=32", prompt,
    )  # fmt: skip


@pytest.mark.parametrize("more", [["--baseline", "0"], ["--think-tokens", "100"]])
def test_questions_without_answers_are_refused_before_a_run(more: list[str], tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question": "x0 = 2. Find x0."}\n')
    settings = ["model=thinker", "+task=file", f"task.path={file}", "task.answer_field=null"]
    sizes = ["--searches", "self_consistency", "--widths", "2", "--folder", str(tmp_path / "runs")]
    args = make_parser().parse_args([*settings, *sizes, *more])
    with pytest.raises(ConfigError, match=r"questions/0 has no gold answer.*task\.answer_field"):
        compare(args, Console(quiet=True))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--think-tokens", "9", "--reach", "rebase:4"], "leave out .*--reach"),
        (["--think-tokens", "9", "--baseline", "0"], "leave out .*--baseline"),
        (["--think-tokens", "9", "--accept-older"], "leave out .*--accept-older"),
        (["--accept-older"], "add --ledger FILE"),
    ],
)
def test_argument_that_would_count_for_nothing_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(make_parser().parse_args(arguments), Console(quiet=True))

"""Intervals of what a search needs, pairs of searches, the runs of a comparison, and tokens that no path holds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from decoding.core import Usage
from reason import ConfigError
from reason.bench.comparison import choose_goal, plan_specs
from reason.bench.evaluation import compare_accuracy, summarize_run
from reason.bench.evaluation_report import format_report
from reason.bench.pairwise import bootstrap_ratio, kv_section, pairwise_section
from reason.bench.problem_values import problem_values, resample_weights
from reason.bench.reach import COSTS, reach_table, share_intervals
from reason.bench.runs import RunOutcome, RunSpec, merge_seeds
from reason.grading import Grade
from reason.runs.metrics import paired_bootstrap
from reason.runs.result import ProblemResult
from search.kv import KVFootprint


def make_run(search: str, width: int, rights: Sequence[bool], tokens: Sequence[int], **usage: int) -> RunOutcome:
    rows = [
        ProblemResult(
            id=str(i),
            gold="1",
            grade=Grade("right" if right else "wrong"),
            usage=Usage(tokens=count, forwards=count, seconds=count / 100, **usage),
            kv=KVFootprint(kept_tokens=count / 2, frontier_tokens=count, peak_tokens=count),
            metadata={"task": "t", "model": "m", "scorer": "s", "speculation": "off", "seed": 0},
        )
        for i, (right, count) in enumerate(zip(rights, tokens, strict=True))
    ]
    totals = {"seconds": 3.0 * len(rows), "forwards": 9, "tokens": sum(tokens), "solved": len(rows)}
    return RunOutcome(RunSpec(search, width), rows, totals, [])


def draw(search: str, width: int, accuracy: float, tokens: int) -> RunOutcome:
    rng = random.Random(f"{search} {width}")
    counts = [rng.randint(tokens // 2, tokens * 3 // 2) for _ in range(60)]
    return make_run(search, width, [rng.random() < accuracy for _ in range(60)], counts)


GOAL = draw("best_of_n", 64, 0.4, 6400)
RUNS = [GOAL, draw("best_of_n", 4, 0.1, 400), draw("ets", 4, 0.3, 420), draw("ets", 16, 0.6, 1700)]


def test_interval_of_a_share_holds_the_share_and_that_of_the_goal_by_itself_is_one() -> None:
    intervals = share_intervals(RUNS, GOAL)
    text = reach_table([summarize_run(run) for run in RUNS], summarize_run(GOAL), intervals)
    assert "| best_of_n | 4 to 64 |" in text
    share = next(line for line in text.splitlines() if line.startswith("| ets |")).split("(")[1].split(",")[0]
    low, high = intervals["ets"]["tokens"]
    assert low < float(share) < high < 0.6
    assert share_intervals([GOAL], GOAL)["best_of_n"] == dict.fromkeys(COSTS, (1.0, 1.0))


def test_interval_has_no_end_where_some_resamples_do_not_reach_the_goal() -> None:
    never = make_run("mcts", 64, [False] * 60, [9000] * 60)
    near = draw("dvts", 16, 0.4, 1700)
    intervals = share_intervals([GOAL, never, near], GOAL)
    assert intervals["mcts"]["tokens"] == (np.inf, np.inf)
    assert np.isfinite(intervals["dvts"]["tokens"][0])
    assert intervals["dvts"]["tokens"][1] == np.inf
    text = reach_table([summarize_run(run) for run in (GOAL, near)], summarize_run(GOAL), intervals)
    assert " to none)" in text or "not reached" in text


def test_resamples_have_the_interval_of_the_paired_bootstrap() -> None:
    one, other = (problem_values(run)["accuracy"] for run in RUNS[2:])
    means = resample_weights(60, 10_000) @ (one - other)
    expected = paired_bootstrap(one, other)
    assert np.percentile(means, [2.5, 97.5]) == pytest.approx([expected.low, expected.high], abs=0.02)
    assert resample_weights(60, 10).sum(axis=1) == pytest.approx(np.ones(10))


def test_ratio_is_paired() -> None:
    base = np.random.default_rng(0).integers(1, 1000, size=50).astype(float)
    ratio = bootstrap_ratio(2 * base, base)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    noisy = bootstrap_ratio(base[::-1].copy(), base)
    assert noisy.low < noisy.value == 1 < noisy.high


def test_level_searches_of_a_width_are_compared_in_pairs_with_a_problem_of_two_seeds_as_one() -> None:
    def seeds(search: str, accuracy: float) -> RunOutcome:
        runs = [draw(search, width, accuracy, 100) for width in (1, 2)]  # the widths draw two seeds
        return merge_seeds(
            [RunOutcome(RunSpec(search, 4, (), i), run.rows, run.totals, []) for i, run in enumerate(runs)]
        )

    beam, rebase = seeds("beam_search", 0.6), seeds("rebase", 0.3)
    assert compare_accuracy(beam, rebase).problems == 60
    text = "\n".join(pairwise_section([GOAL, beam, rebase, seeds("mcts", 0.2), draw("ets", 16, 0.5, 100)]))
    assert text.count("Width") == 1
    table = text[text.index("|") :].splitlines()
    assert table[0] == "|  | rebase |"
    assert table[2].startswith("| beam_search | +")
    assert len(table) == 3
    assert pairwise_section([GOAL, beam]) == []


def test_kv_of_ets_is_compared_where_rebase_has_the_same_width() -> None:
    rebase = make_run("rebase", 16, [True] * 30, range(200, 230))
    ets = make_run("ets search.penalty=2", 16, [True] * 30, [100] * 30)
    text = "\n".join(kv_section([rebase, ets, make_run("ets", 4, [True] * 30, [100] * 30)]))
    assert "| ets search.penalty=2 | 16 | 2.1" in text
    assert "| ets | 4 |" not in text
    assert kv_section([rebase]) == []


def test_tokens_that_no_path_holds_are_counted() -> None:
    plain = make_run("ets", 4, [True] * 4, [100, 200, 300, 400])
    assert problem_values(plain)["tokens"].tolist() == [100, 200, 300, 400]
    routed = make_run("ets", 4, [True] * 2, [100, 200], small_tokens=60, small_forwards=50, discarded_tokens=10)
    assert problem_values(routed)["tokens"].tolist() == [110, 210]
    stopped = make_run("ets", 4, [True] * 2, [100, 200], cancelled=3)
    values = problem_values(RunOutcome(stopped.spec, stopped.rows, stopped.totals | {"tokens": 360}, []))
    assert values["tokens"].tolist() == [130, 230]
    assert values["cancelled_tokens"].tolist() == [30, 30]
    report = format_report([plain, routed], command="c", machine={}, plots={})
    head = next(line for line in report.splitlines() if line.startswith("| search | width | accuracy"))
    assert head.endswith("| busy | by a small model | its forwards | discarded |")
    assert "by a small model" not in format_report([plain], command="c", machine={}, plots={})


def test_seconds_of_the_run_are_divided_by_the_time_that_problems_were_open() -> None:
    values = problem_values(make_run("ets", 4, [True] * 2, [100, 200]))
    assert values["seconds"].tolist() == pytest.approx([2.0, 4.0])  # 3 seconds per problem


def test_baseline_is_one_run_that_is_wider_than_the_searches() -> None:
    def plan(searches: list[str], widths: list[int], baseline: int | None = None) -> list[str]:
        return [spec.label for spec in plan_specs(searches, widths, baseline, ())]

    assert plan(["rebase"], [4, 16]) == ["rebase 4", "rebase 16", "best_of_n 20"]
    assert plan(["best_of_n", "ets"], [2]) == ["best_of_n 2", "ets 2", "best_of_n 3"]
    assert plan(["ets", "rebase"], [256], 0) == ["ets 256", "rebase 256"]
    assert plan(["best_of_n", "ets"], [4, 64], 64) == ["best_of_n 4", "ets 4", "best_of_n 64", "ets 64"]


def test_goal_is_the_run_that_was_asked_for_or_the_widest_best_of_n_that_is_no_baseline() -> None:
    specs = plan_specs(["best_of_n", "ets"], [4, 64], None, ())

    def goal(reach: tuple[str, int] | None, specs: Sequence[RunSpec] = specs) -> str | None:
        chosen = choose_goal(specs, reach, [4, 64])
        return None if chosen is None else chosen.label

    assert goal(None) == "best_of_n 64"
    assert goal(("ets", 4)) == "ets 4"
    assert goal(("best_of_n", 80)) == "best_of_n 80"
    assert goal(None, plan_specs(["ets"], [4, 64], None, ())) == "best_of_n 80"
    assert goal(None, plan_specs(["ets"], [4, 64], 0, ())) is None
    with pytest.raises(ConfigError, match="--reach best_of_n:16 is none of the runs"):
        goal(("best_of_n", 16))

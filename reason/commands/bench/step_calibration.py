"""Measure how well step scores tell correct steps from wrong ones, and what each aggregation makes of the samples.

reason solve +task=synthetic search=best_of_n search.n=16 scorer=prm hydra.run.dir=RUN_FOLDER
reason bench step_calibration RUN_FOLDER --out report.md

Reads a run whose task can check steps exactly. Prints a Markdown report.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean

from rich.console import Console

from reason.bench.arguments import add_report_argument, run_comparison
from reason.bench.report import join_report
from reason.bench.step_calibration import (
    Reliability,
    ScoredSolution,
    ScoredStep,
    choose_right,
    fill_bins,
    list_steps,
    rate_folds,
    rate_reliability,
    read_solutions,
    standard_error,
)
from reason.commands import typed
from reason.runs.resume import load_settings, settings_of_run
from reason.runs.run import check_saved_rows
from reason.runs.tables import ResultTable
from reason.scorers.none import NoScorer
from reason.tasks.selection import select_task

MOST_DEPTHS = 8


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench step_calibration", __doc__)
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="output folder of `reason solve`")
    add_report_argument(parser)
    return parser


def report_calibration(args: argparse.Namespace, console: Console) -> str:
    config, choices, about = load_settings(args.folder)
    with settings_of_run(args.folder):
        task, _ = select_task(config, choices, NoScorer())
    with closing(task):
        check_saved_rows(args.folder, list(task), about)
        solutions = read_solutions(args.folder, task)
    steps = list_steps(solutions)
    tables = _tabulate_depths(steps), _tabulate_bins(steps), _tabulate_folds(solutions, steps)
    parts = [
        f"{len(solutions)} problems of {about['task']}, scorer {choices.get('scorer', '')}, search {about['search']}; "
        f"{len(steps):,} scored steps. A share of the problems has a standard error of at most "
        f"{standard_error(0.5, len(solutions)):.3f}.",
        *(table.markdown_section() for table in tables),
    ]
    return join_report("Calibration of step scores", typed.join_command("bench step_calibration"), parts)


def _tabulate_depths(steps: Sequence[ScoredStep]) -> ResultTable:
    depths = sorted({step.depth for step in steps})[:MOST_DEPTHS]
    rows = [_format_row(str(depth), rate_reliability([s for s in steps if s.depth == depth])) for depth in depths]
    header = ("step", "steps", "correct so far", "mean score", "ECE, 10 bins", "AUC", "AUC within a problem")
    return ResultTable("Reliability by depth", header, [*rows, _format_row("all", rate_reliability(steps))])


def _format_row(name: str, rated: Reliability) -> list[str]:
    shares = (rated.share_correct, rated.mean_score, rated.calibration_error, rated.auc, rated.auc_within)
    return [name, f"{rated.num_steps:,}", *map(_format_share, shares)]


def _tabulate_bins(steps: Sequence[ScoredStep]) -> ResultTable:
    rows = [
        [f"{b.lowest:.2g} to {b.highest:.2g}", f"{b.num_steps:,}", f"{b.mean_score:.2g}", f"{b.share_correct:.3f}"]
        for b in fill_bins(steps)
    ]
    return ResultTable("Tenths of the steps, by score", ("score", "steps", "mean score", "correct so far"), rows)


def _tabulate_folds(solutions: Mapping[str, Sequence[ScoredSolution]], steps: Sequence[ScoredStep]) -> ResultTable:
    rows = [
        [fold, *map(_format_share, (quality.best, quality.weighted, quality.auc_within))]
        for fold, quality in rate_folds(solutions, steps).items()
    ]
    problems = solutions.values()
    without_scores = {
        "majority vote": [choose_right(samples, "majority") for samples in problems],
        "first sample": [samples[0].is_right for samples in problems],
        "any sample": [any(sample.is_right for sample in samples) for samples in problems],
        "any sample by correct steps": [any(sample.is_correct for sample in samples) for samples in problems],
    }
    rows += [[name, _format_share(fmean(is_right)), "", ""] for name, is_right in without_scores.items()]
    header = ("agg_strategy", "best of N", "weighted vote", "AUC of beginnings within a problem")
    return ResultTable("Accuracy by aggregation, all samples of each problem", header, rows)


def _format_share(share: float | None) -> str:
    return "" if share is None else f"{share:.3f}"


def run_program() -> int:
    return run_comparison(make_parser(), report_calibration)

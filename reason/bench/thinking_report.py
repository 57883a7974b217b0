"""Compares searches over budgets of the thought: accuracy where thoughts are ended by force, and where they are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from reason.bench.plots import draw_panels
from reason.bench.problem_values import correct_answers, tokens_per_problem
from reason.bench.report import join_report
from reason.bench.runs import RunOutcome, RunSpec
from reason.runs.metrics import avg_at_n, paired_bootstrap, per_problem_values
from reason.runs.tables import format_markdown

ENDINGS = {
    "forced": ("model.thinking.think_tokens={budget}",),
    "cut": ("search.sampling.max_tokens={budget}", "model.thinking.answer_tokens=0"),
}
"""How a thought ends at its budget, and the settings for it: cut is what a limit of tokens alone does."""


@dataclass(frozen=True)
class BudgetPoint:
    """One search with one budget: accuracy with the 95 % interval of a bootstrap, and means per problem.

    accuracy, low, high             of the chosen answers
    single, single_low, single_high of the solutions by themselves
    """

    search: str
    width: int
    ending: str
    think_tokens: int
    accuracy: float
    low: float
    high: float
    single: float
    single_low: float
    single_high: float
    tokens: float
    unanswered: float


def plan_runs(
    searches: Sequence[str], widths: Sequence[int], budgets: Sequence[int], common: tuple[str, ...]
) -> dict[RunSpec, tuple[str, str, int]]:
    """Returns the runs, each with its search, its ending and its budget."""
    runs: dict[RunSpec, tuple[str, str, int]] = {}
    for (ending, settings), search, width, budget in product(ENDINGS.items(), searches, widths, budgets):
        added = [setting.format(budget=budget) for setting in settings]
        runs[RunSpec(" ".join([search, *added]), width, common)] = search, ending, budget
    return runs


def summarize_budget(outcome: RunOutcome, search: str, ending: str, budget: int) -> BudgetPoint:
    """Returns the point of a run."""
    rows = outcome.rows
    nothing = np.zeros(len(rows))
    interval = paired_bootstrap(correct_answers(rows), nothing)
    single = paired_bootstrap(per_problem_values([row.graded_samples for row in rows], avg_at_n), nothing)
    return BudgetPoint(
        search=search,
        width=outcome.spec.width,
        ending=ending,
        think_tokens=budget,
        accuracy=interval.value,
        low=interval.low,
        high=interval.high,
        single=single.value,
        single_low=single.low,
        single_high=single.high,
        tokens=tokens_per_problem(outcome),
        unanswered=sum(row.answer is None for row in rows) / len(rows),
    )


def draw_budgets(points: Sequence[BudgetPoint], file: Path) -> None:
    """Draws accuracy over the budget of a thought, one line per search, width and ending."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for point in points:
        label = f"{point.search}, width {point.width}, {point.ending}"
        xs, ys = curves.setdefault(label, ([], []))
        xs.append(point.think_tokens)
        ys.append(point.accuracy)
    draw_panels(file, {"": curves}, x="tokens of a thought, at most", y="accuracy of the chosen answer")


def format_budgets(
    points: Sequence[BudgetPoint], *, command: str, machine: Mapping[str, object], num_problems: int, plot: Path | None
) -> str:
    """Returns the report in Markdown."""
    head = [
        "search",
        "width",
        "ending",
        "think tokens",
        "accuracy",
        "interval",
        "single",
        "interval",
        "tokens per problem",
        "no answer",
    ]
    rows = [
        [
            point.search,
            str(point.width),
            point.ending,
            str(point.think_tokens),
            f"{point.accuracy:.3f}",
            f"{point.low:.3f} to {point.high:.3f}",
            f"{point.single:.3f}",
            f"{point.single_low:.3f} to {point.single_high:.3f}",
            f"{point.tokens:,.0f}",
            f"{point.unanswered:.0%}",
        ]
        for point in points
    ]
    parts = [
        f"{num_problems} problems, the same for all rows; intervals are 95 %, by bootstrap over problems. *forced*: at "
        "the budget the thought is closed and the answer asked for. *cut*: the solution ends there. *single*: of the "
        "solutions by themselves, without a vote.",
        *([f"![Accuracy against the budget]({plot.name})"] if plot else []),
        format_markdown(head, rows),
    ]
    figures = {"machine": dict(machine), "points": [asdict(point) for point in points]}
    return join_report("Accuracy against the budget of a thought", command, parts, machine=machine, figures=figures)

"""Computes what each search needs to be as accurate as a goal, such as best-of-64, interpolated over its widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reason.bench.evaluation import RunSummary
from reason.bench.problem_values import Floats, problem_values, resample_weights, tokens_per_problem
from reason.bench.runs import RunOutcome
from reason.runs.tables import format_markdown

COSTS = ("tokens", "seconds", "kept_kv", "forwards")
RESAMPLES = 2000

Interval = tuple[float, float]


@dataclass(frozen=True)
class ReachedGoal:
    """What a search needs for an accuracy, per problem.

    costs      by the names of `COSTS`; empty where no width of it was as accurate
    widths     between which widths that is; one width where the narrowest run is more accurate already
    best       its highest accuracy
    """

    search: str
    costs: dict[str, float]
    widths: tuple[int, ...]
    best: float

    @property
    def is_upper_bound(self) -> bool:
        """Whether the search would reach the accuracy with less than its narrowest run needed."""
        return len(self.widths) == 1


def reach_accuracy(summaries: Sequence[RunSummary], goal: float) -> list[ReachedGoal]:
    """Returns what each search needs to first reach an accuracy, in the order of the searches.

    Its runs are ordered by their tokens. Between two of them the accuracy is taken as linear in the logarithm of each
    cost, as accuracy often is in samples.
    """
    runs_by_search: dict[str, list[RunSummary]] = {summary.search: [] for summary in summaries}
    for summary in sorted(summaries, key=lambda one: one.tokens):
        runs_by_search[summary.search].append(summary)
    return [_reach(search, runs, goal) for search, runs in runs_by_search.items()]


def share_intervals(outcomes: Sequence[RunOutcome], goal: RunOutcome) -> dict[str, dict[str, Interval]]:
    """Returns 95 % intervals of the shares of the goal's costs with which each search reaches its accuracy.

    A bootstrap over problems, paired: each resample has its own accuracies, costs and goal. The end of an interval is
    infinite where more than 2.5 % of the resamples do not reach the goal.
    """
    of_goal = _resample(goal)
    runs_by_search: dict[str, list[RunOutcome]] = {}
    for outcome in sorted(outcomes, key=tokens_per_problem):
        runs_by_search.setdefault(outcome.spec.search, []).append(outcome)
    intervals = {}
    for search, runs in runs_by_search.items():
        numbers = np.stack([_resample(run) for run in runs], axis=1)  # [R, W, 1 + C]
        needed = [_first_costs(one[:, 0], one[:, 1:], at[0]) for one, at in zip(numbers, of_goal, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.array(needed) / of_goal[:, 1:]
        low, high = np.percentile(shares, [2.5, 97.5], axis=0, method="nearest")
        intervals[search] = {name: (float(low[i]), float(high[i])) for i, name in enumerate(COSTS)}
    return intervals


def reach_table(
    summaries: Sequence[RunSummary], goal: RunSummary, intervals: Mapping[str, Mapping[str, Interval]] | None = None
) -> str:
    """Returns a Markdown table of what each search needs for the accuracy of the goal, with its shares."""
    rows = []
    for reached in reach_accuracy(summaries, goal.accuracy):
        mark = "at most " if reached.is_upper_bound else ""
        between = (intervals or {}).get(reached.search, {})
        cells = [
            f"{mark}{reached.costs[name]:,.{_digits(name)}f} "
            f"({_format_share(reached.costs[name], _cost(goal, name), between.get(name))})"
            if reached.costs
            else "-"
            for name in COSTS
        ]
        where = " to ".join(map(str, reached.widths)) or f"not reached, {reached.best:.3f} at best"
        rows.append([reached.search, where, *cells])
    return format_markdown(["search", "width", "tokens", "seconds", "kept KV", "forwards"], rows)


def _reach(search: str, runs: Sequence[RunSummary], goal: float) -> ReachedGoal:
    accuracies = np.array([run.accuracy for run in runs])
    costs = _first_costs(accuracies, np.array([[_cost(run, name) for name in COSTS] for run in runs]), goal)
    best = float(accuracies.max())
    if best < goal:
        return ReachedGoal(search, {}, (), best)
    at = int(np.argmax(accuracies >= goal))
    widths = tuple(run.width for run in runs[max(0, at - 1) : at + 1])
    return ReachedGoal(search, dict(zip(COSTS, costs.tolist(), strict=True)), widths, best)


def _first_costs(accuracies: Floats, costs: Floats, goal: float) -> Floats:
    """Returns the costs with which `[W]` accuracies first reach a goal, of `[W, C]` costs; inf if never."""
    reached = accuracies >= goal
    at = int(np.argmax(reached))
    if not reached[at]:
        return np.full(costs.shape[1], np.inf)
    if at == 0:
        return np.asarray(costs[0])
    before, after = costs[at - 1], costs[at]
    share = (goal - accuracies[at - 1]) / (accuracies[at] - accuracies[at - 1])
    is_positive = (before > 0) & (after > 0)
    ratio = np.divide(after, before, out=np.ones_like(after), where=is_positive)
    return np.asarray(np.where(is_positive, before * ratio**share, before + share * (after - before)))


def _resample(run: RunOutcome) -> Floats:
    """Returns accuracy and costs of a run in each resample, `[R, 1 + C]`."""
    values = problem_values(run)
    table = np.stack([values[name] for name in ("accuracy", *COSTS)], axis=1)
    return resample_weights(len(table), RESAMPLES) @ table


def _format_share(cost: float, of: float, interval: Interval | None) -> str:
    if not of:
        return "-"
    ends = "" if interval is None else f", {interval[0]:.2f} to {_format_end(interval[1])}"
    return f"{cost / of:.2f}{ends}"


def _format_end(share: float) -> str:
    return f"{share:.2f}" if np.isfinite(share) else "none"


def _cost(summary: RunSummary, name: str) -> float:
    return float(getattr(summary, name))


def _digits(name: str) -> int:
    return 1 if name == "seconds" else 0

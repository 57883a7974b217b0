"""Computes what each search needs to be as accurate as best-of-N at its widest, interpolated over its widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reason.bench.evaluation import RunSummary
from reason.runs.tables import format_markdown

COSTS = ("tokens", "seconds", "kept_kv", "forwards")


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
    by_search: dict[str, list[RunSummary]] = {}
    for summary in sorted(summaries, key=lambda s: s.tokens):
        by_search.setdefault(summary.search, []).append(summary)
    order = dict.fromkeys(summary.search for summary in summaries)
    return [_reach(search, by_search[search], goal) for search in order]


def _reach(search: str, runs: Sequence[RunSummary], goal: float) -> ReachedGoal:
    best = max(run.accuracy for run in runs)
    at = next((i for i, run in enumerate(runs) if run.accuracy >= goal), None)
    if at is None:
        return ReachedGoal(search, {}, (), best)
    reached = runs[at]
    if at == 0:
        return ReachedGoal(search, {name: _cost(reached, name) for name in COSTS}, (reached.width,), best)
    before = runs[at - 1]
    share = (goal - before.accuracy) / (reached.accuracy - before.accuracy)
    costs = {name: _between(_cost(before, name), _cost(reached, name), share) for name in COSTS}
    return ReachedGoal(search, costs, (before.width, reached.width), best)


def reach_table(summaries: Sequence[RunSummary]) -> str:
    """Returns a Markdown table of what each search needs for the accuracy of the widest best-of-N, with its shares."""
    goal = max((s for s in summaries if s.search == "best_of_n"), key=lambda s: s.width)
    rows = []
    for reached in reach_accuracy(summaries, goal.accuracy):
        mark = "at most " if reached.is_upper_bound else ""
        cells = [
            f"{mark}{reached.costs[name]:,.{_digits(name)}f} ({_share(reached.costs[name], _cost(goal, name))})"
            if reached.costs
            else "-"
            for name in COSTS
        ]
        where = " to ".join(map(str, reached.widths)) or f"not reached, {reached.best:.3f} at best"
        rows.append([reached.search, where, *cells])
    return format_markdown(["search", "width", "tokens", "seconds", "kept KV", "forwards"], rows)


def _cost(summary: RunSummary, name: str) -> float:
    return float(getattr(summary, name))


def _between(before: float, after: float, share: float) -> float:
    if before <= 0 or after <= 0:
        return before + share * (after - before)
    return float(before * (after / before) ** share)


def _share(cost: float, of: float) -> str:
    return f"{cost / of:.2f}" if of else "-"


def _digits(name: str) -> int:
    return 1 if name == "seconds" else 0

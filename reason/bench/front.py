"""Turns what a comparison measured into rows of the table that `search=auto` chooses from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from reason.bench.evaluation import count_samples, find_baseline, summarize_run
from reason.bench.problem_values import tokens_per_problem
from reason.bench.runs import RunOutcome, plan_run
from reason.config.front import FrontEntry

CHOSEN = ("search.", "step", "early_exit")
"""Beginnings of the common settings that belong to a search; the others belong to the run that was measured."""


def measure_search(outcome: RunOutcome, outcomes: Sequence[RunOutcome], source: str) -> FrontEntry:
    """Returns a search that was run as a row of the table.

    Its cost in solutions is its tokens over those of a solution in the widest best-of-N of `outcomes`.
    """
    plan = plan_run(outcome.spec)
    baseline = find_baseline(outcomes)
    assert baseline is not None  # the command refuses a table without one
    summary = summarize_run(outcome)
    search, *settings = shlex.split(outcome.spec.search)
    common = [setting for setting in outcome.spec.common if setting.startswith(CHOSEN)]
    metadata = outcome.rows[0].metadata
    return FrontEntry(
        search=search,
        settings=(*common, *settings),
        width=outcome.spec.width,
        samples=round(summary.tokens * count_samples(baseline) / tokens_per_problem(baseline), 2),
        tokens=round(summary.tokens, 1),
        seconds=round(summary.seconds, 2),
        kept_kv=round(summary.kept_kv, 1),
        accuracy=round(summary.accuracy, 4),
        low=round(summary.low, 4),
        high=round(summary.high, 4),
        problems=summary.problems,
        task=str(metadata["task"]),
        model=str(metadata["model"]),
        thinking=bool(plan.config["model"].get("thinking")),
        scorer=plan.names["scorer"] if plan.strategy.needs_scorer else None,
        source=source,
    )

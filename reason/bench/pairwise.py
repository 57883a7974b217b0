"""Compares searches of the same width with each other: accuracy in pairs, and the KV of ETS with that of REBASE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reason.bench.evaluation import compare_accuracy, format_points, index_by_width
from reason.bench.problem_values import Floats, problem_values, resample_weights
from reason.bench.runs import RunOutcome, plan_run
from reason.runs.metrics import PairedDifference
from reason.runs.tables import format_markdown
from search.level_search import LevelSearch

KV = {"kept_kv": "kept", "frontier_kv": "frontier", "peak_kv": "peak"}
RESAMPLES = 10_000


def pairwise_section(outcomes: Sequence[RunOutcome]) -> list[str]:
    """Returns tables of the differences between all pairs of level searches, one table per width."""
    tables = []
    for width in sorted({outcome.spec.width for outcome in outcomes}):
        runs = [o for o in outcomes if o.spec.width == width and isinstance(plan_run(o.spec).strategy, LevelSearch)]
        if len(runs) > 1:
            tables += [f"Width {width}:", _pair_table(runs)]
    if not tables:
        return []
    return [
        "## Level searches in pairs",
        "Accuracy of the search of the row less that of the column, in points, with its interval: a paired bootstrap "
        "over problems, of the mean over seeds.",
        *tables,
    ]


def kv_section(outcomes: Sequence[RunOutcome]) -> list[str]:
    """Returns a table of how much smaller the KV of ETS is than that of REBASE, at the widths that both have."""
    rebase = index_by_width(outcomes, "rebase")
    rows = []
    for ets in (o for o in outcomes if o.spec.search.split()[0] in ("ets", "ets_published") and o.spec.width in rebase):
        other = rebase[ets.spec.width]
        ratios = compare_kv(ets, other)
        rows.append([
            ets.spec.search,
            str(ets.spec.width),
            *(f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})" for ratio in ratios.values()),
            _engine_ratio(other, ets),
            format_points(compare_accuracy(ets, other)),
        ])  # fmt: skip
    if not rows:
        return []
    return [
        "## KV of REBASE over KV of ETS",
        format_markdown(["search", "width", *KV.values(), "engine", "accuracy, in points"], rows),
        "Ratios of means over problems, with the intervals of a paired bootstrap over problems; the engine measures no "
        "single problem.",
    ]


def compare_kv(ets: RunOutcome, rebase: RunOutcome) -> dict[str, PairedDifference]:
    """Returns how many times the KV of one search the other needs, by the names of `KV`."""
    mine, theirs = problem_values(ets), problem_values(rebase)
    return {name: bootstrap_ratio(theirs[name], mine[name]) for name in KV}


def bootstrap_ratio(a: Floats, b: Floats) -> PairedDifference:
    """Estimates mean(a) / mean(b) of the same problems, with the 95 % interval of a paired bootstrap.

    >>> bootstrap_ratio(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    PairedDifference(value=2.0, low=2.0, high=2.0, problems=2)
    """
    weights = resample_weights(len(a), RESAMPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.percentile((weights @ a) / (weights @ b), [2.5, 97.5])
        return PairedDifference(float(a.mean() / b.mean()), float(low), float(high), len(a))


def _pair_table(runs: Sequence[RunOutcome]) -> str:
    rows = [
        [
            one.spec.search,
            *("" if j <= i else format_points(compare_accuracy(one, other)) for j, other in enumerate(runs) if j),
        ]
        for i, one in enumerate(runs[:-1])
    ]
    return format_markdown(["", *(run.spec.search for run in runs[1:])], rows)


def _engine_ratio(more: RunOutcome, less: RunOutcome) -> str:
    a, b = (run.totals.get("kv_tokens_per_problem") for run in (more, less))
    return f"{a / b:.2f}x" if a and b else "-"

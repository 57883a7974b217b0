"""Compares runs on the problems that they have in common: which is right more often, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from decoding.validation import require_package
from reason.runs.gather import FoundRun, cost_of_result
from reason.runs.metrics import PairedDifference, paired_bootstrap
from reason.runs.result import ProblemResult


@dataclass(frozen=True)
class PairedRuns:
    """Two runs on the same problems.

    difference      accuracy of `a` minus that of `b`, with its 95 % interval (paired bootstrap over problems)
    only_a, only_b  problems that only one of them has right
    p_value         of McNemar's exact test: the chance of counts at least as unequal if both are equally good
    cost_ratios     cost of `a` over that of `b`, see `reason.runs.gather.COSTS`; without costs of which `b` has none
    """

    a: FoundRun
    b: FoundRun
    difference: PairedDifference
    only_a: int
    only_b: int
    p_value: float
    cost_ratios: Mapping[str, float]


def compare_runs(runs: Sequence[FoundRun]) -> list[PairedRuns]:
    """Returns the comparison of each pair of runs.

    Raises: ValueError for fewer than two runs, a run that has no results, or a pair without common problems.
    """
    if len(runs) < 2:
        raise ValueError(f"at least two runs are compared, found {len(runs)}")
    for run in runs:
        if run.broken is not None:
            raise ValueError(f"{run.folder}: {run.broken}")
    return [_compare_pair(a, b) for a, b in combinations(runs, 2)]


def list_common_problems(runs: Sequence[FoundRun]) -> list[tuple[ProblemResult, ...]]:
    """Returns the results of each problem that all runs have and whose gold answer is known, in the first run's order.

    Raises: ValueError where a problem has two gold answers: the runs are of different data.
    """
    by_id = [{result.id: result for result in run.results} for run in runs]
    common = []
    for first in runs[0].results:
        if first.has_gold and all(first.id in results for results in by_id):
            rows = tuple(results[first.id] for results in by_id)
            for run, row in zip(runs, rows, strict=True):
                if row.gold != first.gold:
                    raise ValueError(
                        f"{first.id}: the gold answer is {first.gold} in {runs[0].folder} "
                        f"and {row.gold} in {run.folder}"
                    )
            common.append(rows)
    return common


def _compare_pair(a: FoundRun, b: FoundRun) -> PairedRuns:
    require_package("the test of significance", "scipy")
    from scipy.stats import binomtest  # takes a second to import

    pairs = list_common_problems([a, b])
    if not pairs:
        raise ValueError(f"{a.folder} and {b.folder} have no problem with a gold answer in common")
    is_right = np.array([[row.is_correct for row in pair] for pair in pairs], dtype=np.float64)
    only_a = sum(x.is_correct and not y.is_correct for x, y in pairs)
    only_b = sum(y.is_correct and not x.is_correct for x, y in pairs)
    costs_a, costs_b = ([cost_of_result(pair[side]) for pair in pairs] for side in (0, 1))
    totals = {name: [sum(cost[name] for cost in costs) for costs in (costs_a, costs_b)] for name in costs_a[0]}
    return PairedRuns(
        a,
        b,
        paired_bootstrap(is_right[:, 0], is_right[:, 1]),
        only_a,
        only_b,
        float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0,
        {name: of_a / of_b for name, (of_a, of_b) in totals.items() if of_b},
    )

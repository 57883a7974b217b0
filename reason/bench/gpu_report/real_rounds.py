"""Part a6: rounds of 1.5B and 7B at real contexts, in milliseconds and as a share of the measured roofline."""

from __future__ import annotations

import time
from itertools import product
from statistics import median

from reason.bench.gpu_report.rig import NO_TIME, ReportRig, free_models, make_random_body, measure_ceilings
from reason.bench.gpu_report.steady import SteadyRounds, open_rounds
from reason.bench.gpu_report.timing import synchronize
from reason.bench.puppet import find_shape
from reason.bench.round_cases import REASONING_SAMPLING
from reason.bench.round_contexts import BestOfNContexts, ContextSource, SearchContexts

BARS = {"qwen2.5-7b": 0.60, "qwen2.5-1.5b": 0.50}
"""Least share of the measured roofline that a plain round reaches."""
_CASE_SECONDS = 2.0


def measure_rounds(rig: ReportRig) -> None:
    """Adds a line per model, contexts, branches and draft nodes."""
    for model in rig.pick(("qwen2.5-7b", "qwen2.5-1.5b"), ("miniature",)):
        cases = product(rig.pick((0, 4, 16), (0, 2)), rig.pick((1, 4, 16, 64), (2,)), ("best of n", "search"))
        # plain rounds first: they have the bars
        for nodes, branches, workload in cases:
            title = f"{model}, {workload}, {branches} branches x {nodes} nodes"
            if rig.has_seconds(rig.pick(_CASE_SECONDS, 0)):
                _measure_case(rig, title, model, _make_source(rig, workload, branches), nodes)
            else:
                rig.add_skipped(title, NO_TIME)
        free_models()
    _compare_blocks(rig)


def _compare_blocks(rig: ReportRig) -> None:
    """Measures rounds of a search once more with attention over blocks, which segments replace."""
    model, branches = rig.pick("qwen2.5-7b", "miniature"), rig.pick(64, 2)
    for nodes in rig.pick((0, 4), (0, 2)):
        title = f"{model}, search, {branches} branches x {nodes} nodes, blocks"
        if rig.has_seconds(rig.pick(3 * _CASE_SECONDS, 0)):
            _measure_case(rig, title, model, _make_source(rig, "search", branches), nodes, attention="blocks")
        else:
            rig.add_skipped(title, NO_TIME)


def _make_source(rig: ReportRig, workload: str, branches: int) -> ContextSource:
    if workload == "search":
        tiny: ContextSource = SearchContexts(branches, 1, 2, prompt=(3, 9), written=(3, 9), step=(1, 9))
        return rig.pick(SearchContexts(branches), tiny)
    return rig.pick(BestOfNContexts(branches), BestOfNContexts(branches, prompt=6, generated=12))


def _measure_case(
    rig: ReportRig, title: str, model: str, source: ContextSource, nodes: int, attention: str = "segments"
) -> None:
    card = measure_ceilings(rig)
    rounds = open_rounds(make_random_body(rig, model, attention), find_shape(model), source, nodes, REASONING_SAMPLING)
    try:
        seconds = _time_rounds(rig, rounds)
    finally:
        rounds.runner.release_pool()
    limit = rounds.minimum_seconds(card)
    value = f"{1e3 * seconds:.2f} ms, {limit / seconds:.0%} of the roofline of {1e3 * limit:.2f} ms"
    details = {"seconds": seconds, "roofline_seconds": limit, "rows": rounds.rows}
    if nodes or attention == "blocks":
        rig.add_figure(title, f"{value}, {rounds.rows} rows", **details)
        return
    value = f"{value}, {rounds.branches / seconds:,.0f} tokens/s"
    bar = BARS.get(model, 0.0)
    rig.add_device_check(title, value, limit / seconds >= bar, f"at least {bar:.0%} of the roofline", **details)


def _time_rounds(rig: ReportRig, rounds: SteadyRounds) -> float:
    """Returns the median seconds of a round; the first ones compile and are not counted."""
    for _ in range(rig.pick(3, 0)):
        rounds.run_round()
    synchronize(rig.device)
    seconds = []
    for _ in range(rig.pick(15, 1)):
        begin = time.perf_counter()
        rounds.run_round()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)

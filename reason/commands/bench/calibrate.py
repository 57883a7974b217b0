"""Calibrate the distance threshold of an embedder, and print the settings.

reason bench calibrate                                          hidden states of the bundled model
reason bench calibrate embedder=sentence_transformers embedder.path=FOLDER
reason bench calibrate model=qwen2.5-math-1.5b +task=math500 limit=20

Takes the settings of `reason solve`. Two steps count as equal if they hold the same numbers in order.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from reason import ConfigError
from reason.bench.calibrate import DistanceRecorder, best_threshold, rate_thresholds
from reason.commands import typed
from reason.config.compose import compose_settings
from reason.scorers.embedders.measured_threshold import MeasuredThreshold
from reason.settings.validate import validate_settings
from reason.tasks.selection import select_task

DEFAULTS = ("search=ets", "limit=32")


def run_program() -> int:
    console = Console(highlight=False)
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(typed.as_called(__doc__ or ""))
        return 0
    try:
        config, choices = compose_settings([*DEFAULTS, *sys.argv[1:]])
        plan = validate_settings(config, choices)
        if plan.embedder is None:
            raise ConfigError("this search compares no steps; choose search=ets, or search.merge=true")
        task, _ = select_task(plan.config, choices, plan.scorer)
    except ConfigError as error:
        console.print(str(error), style="red", markup=False)
        return 2
    recorder = DistanceRecorder(plan.embedder)
    with closing(task), replace(plan, embedder=recorder).load_solver(task) as solver:
        for _ in solver.solve_many(list(task)[: config["limit"]]):
            pass
    try:
        best = best_threshold(recorder.distances, recorder.same)
    except ValueError as error:
        console.print(str(error), style="red", markup=False)
        return 2
    table = Table("threshold", "equal pairs below", "different pairs above", "balanced", box=None)
    around = [best.distance * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    for cut in rate_thresholds(recorder.distances, recorder.same, around):
        table.add_row(*(f"{x:.4g}" for x in (cut.distance, cut.same_below, cut.different_above, cut.balanced_accuracy)))
    console.print(table)
    console.print(f"{len(recorder.same):,} pairs, {sum(recorder.same):,} of them equal")
    settings = f"embedder.distance_threshold={best.distance:.2g}"
    if isinstance(plan.embedder, MeasuredThreshold):
        settings += f" embedder.measured_on={plan.embedder.find_measured_path(config['model']['path'])}"
    console.print(settings, style="bold")
    return 0

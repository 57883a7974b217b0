"""Measure at which distance an embedder's steps say the same, and print the setting.

python scripts/bench/calibrate.py                                          the bundled writer's hidden states
python scripts/bench/calibrate.py embedder=sentence_transformers embedder.path=FOLDER
python scripts/bench/calibrate.py model=qwen2.5-math-1.5b +task=math500 limit=20

Takes the settings of scripts/solve.py. Two steps count as saying the same if they hold the same numbers in order.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from reason import ConfigError, build
from reason.bench.calibrate import Recorder, best_cut, cuts
from reason.config.compose import composed

DEFAULTS = ("search=ets", "limit=32")


def main() -> int:
    console = Console(highlight=False)
    try:
        config, choices = composed([*DEFAULTS, *sys.argv[1:]])
        plan = build.check(config, choices)
        if plan.embedder is None:
            raise ConfigError("this search compares no steps; choose search=ets, or search.merge=true")
        task, _ = build.task_of(plan, choices)
    except ConfigError as error:
        console.print(str(error), style="red", markup=False)
        return 2
    recorder = Recorder(plan.embedder)
    with closing(task), replace(plan, embedder=recorder).open(task) as solver:
        for _ in solver.solve_many(list(task)[: config["limit"]]):
            pass
    best = best_cut(recorder.distances, recorder.same)
    table = Table("cut", "same, kept together", "different, kept apart", "balanced", box=None)
    around = [best.distance * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    for cut in cuts(recorder.distances, recorder.same, around):
        table.add_row(*(f"{x:.4g}" for x in (cut.distance, cut.kept_together, cut.kept_apart, cut.balanced)))
    console.print(table)
    console.print(f"{len(recorder.same):,} pairs, {sum(recorder.same):,} of them say the same")
    console.print(f"embedder.cut={best.distance:.2g}", style="bold")
    return 0


if __name__ == "__main__":
    sys.exit(main())

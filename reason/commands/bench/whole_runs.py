"""Measure whole runs with speculation beside the same runs without it.

reason bench whole_runs                                      every workload, 20 pairs; an hour
reason bench whole_runs --workloads default,question --pairs 5 --set controller.max_draft_tokens=64

Each run with speculation stands between two without, whose ratio to each other says what this machine cannot tell.
A table first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from reason.bench.arguments import name_list, positive_int, run_benchmark
from reason.commands import typed

if TYPE_CHECKING:
    from reason.bench.whole_runs import RunComparison

COLUMNS = ("workload", "pairs", "wall", "off / off", "CPU", "off / off", "rounds", "of", "drafted per round")


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench whole_runs", __doc__)
    parser.add_argument("--workloads", type=name_list, help="NAME,NAME; default: all")
    parser.add_argument("--pairs", type=positive_int, default=20)
    parser.add_argument("--speculation", default="stand", help="an option of speculation=")
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs; may be repeated")
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    return parser


def bench_whole_runs(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.whole_runs import WORKLOADS, compare_runs

    workloads = args.workloads or list(WORKLOADS)
    if unknown := sorted(set(workloads) - set(WORKLOADS)):
        raise SystemExit(f"--workloads must be of {', '.join(WORKLOADS)}, got {', '.join(unknown)}")
    latest: dict[str, RunComparison] = {}
    with Live(console=console, auto_refresh=False) as live:
        for comparison in compare_runs(workloads, args.pairs, args.speculation, args.set):
            latest[comparison.workload] = comparison
            live.update(_format(list(latest.values())), refresh=True)
    return {
        "bench": "whole_runs",
        "speculation": args.speculation,
        "settings": args.set,
        "workloads": [comparison.to_json() for comparison in latest.values()],
    }


def _format(comparisons: Sequence[RunComparison]) -> Table:
    table = Table(*COLUMNS, box=None, title="Seconds with speculation over seconds without: median (lowest to highest)")
    for comparison in comparisons:
        cells = [
            f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            for clock in ("wall", "cpu")
            for ratios in comparison.ratios(clock)
        ]
        drafted, plain = comparison.drafted[-1], comparison.plain[-1]
        table.add_row(
            comparison.workload,
            str(len(comparison.drafted)),
            *cells,
            str(drafted.rounds),
            str(plain.rounds),
            f"{drafted.drafted / max(1, drafted.rounds):.1f}",
        )
    return table


def run_program() -> None:
    run_benchmark(make_parser(), bench_whole_runs)

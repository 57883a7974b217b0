"""Measure whole runs with speculation beside the same runs without it.

reason bench whole_runs                                      every workload, 20 pairs; an hour
reason bench whole_runs --workloads default,question --pairs 5 --set controller.max_draft_tokens=64
reason bench whole_runs --pairs 10 --out FILE.md             and a report

Each run with speculation stands between two without, whose ratio to each other says what this machine cannot tell.
A table first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from reason.bench.arguments import (
    add_report_argument,
    describe_length,
    name_list,
    positive_int,
    require_names,
    run_benchmark,
)
from reason.commands import typed

if TYPE_CHECKING:
    from reason.runs.tables import ResultTable


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench whole_runs", __doc__)
    parser.add_argument("--workloads", type=name_list, help="NAME,NAME; default: all")
    parser.add_argument("--pairs", type=positive_int, default=20)
    parser.add_argument("--speculation", default="stand", help="an option of speculation=")
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs; may be repeated")
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    add_report_argument(parser)
    return parser


def bench_whole_runs(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.engine import describe_machine
    from reason.bench.whole_runs import WORKLOADS, compare_runs
    from reason.bench.whole_runs_report import format_report, make_table

    workloads = args.workloads or list(WORKLOADS)
    require_names("--workloads", workloads, WORKLOADS)
    console.print(describe_length(workloads=len(workloads), pairs=args.pairs, runs_of_a_pair=3))
    latest: dict[str, dict[str, object]] = {}
    result: dict[str, object] = {
        "bench": "whole_runs",
        "speculation": args.speculation,
        "settings": args.set,
        "workloads": [],
        "machine": describe_machine(),
    }
    with Live(console=console, auto_refresh=False) as live:
        for comparison in compare_runs(workloads, args.pairs, args.speculation, args.set):
            latest[comparison.workload] = comparison.to_json()
            result["workloads"] = list(latest.values())
            live.update(_show(make_table(list(latest.values()))), refresh=True)
            if args.out:  # an hour's run that is stopped leaves its pairs
                args.out.write_text(format_report(result, typed.join_command("bench whole_runs")), encoding="utf-8")
    return result


def _show(table: ResultTable) -> Table:
    shown = Table(*table.header, box=None, title=table.title)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def run_program() -> None:
    run_benchmark(make_parser(), bench_whole_runs)

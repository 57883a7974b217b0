"""Measure what searches cost by themselves: models are free, so only the strategy and its tree count.

reason bench bookkeeping                            every strategy at 16, 256 and 1,024 branches
reason bench bookkeeping --strategies mcts ets --widths 16,4096 --depth 20
reason bench bookkeeping --out FILE.md              and a report

CPU microseconds per branch and step, and bytes at the peak per node of the tree. A table first; the last line of stdout
is one JSON object.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.progress import track

from reason.bench.arguments import add_report_argument, positive_int, positive_ints, require_names, run_benchmark
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench bookkeeping", __doc__)
    parser.add_argument("--strategies", nargs="+", help="default: all that this bench knows")
    parser.add_argument("--widths", type=positive_ints, default=(16, 256, 1024), help="branches at a time")
    parser.add_argument("--depth", type=positive_int, default=10, help="steps of a solution")
    parser.add_argument("--repeats", type=positive_int, default=5, help="of each search; the fastest counts")
    parser.add_argument("--threads", type=positive_int, default=1, help="torch threads")
    add_report_argument(parser)
    return parser


def bench_bookkeeping(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.bookkeeping import format_report, list_strategies, make_table, measure_search
    from reason.bench.engine import describe_machine

    known = list_strategies(16, args.depth)
    names = args.strategies or list(known)
    require_names("--strategies", names, known)
    searches = [(name, width) for width in args.widths for name in names]
    costs = [
        measure_search(name, width, args.depth, args.repeats)
        for name, width in track(searches, "searches", console=console, transient=True)
    ]
    make_table(costs).print_table(console)
    result: dict[str, object] = {
        "bench": "bookkeeping",
        "depth": args.depth,
        "repeats": args.repeats,
        "points": [cost.to_json() for cost in costs],
        "machine": describe_machine(),
    }
    if args.out:
        report = format_report(result, costs, typed.join_command("bench bookkeeping"))
        args.out.write_text(report, encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_bookkeeping)

"""Measure what searches cost by themselves: models are free, so only the strategy and its tree count.

reason bench bookkeeping                            every strategy at 16, 256 and 1,024 branches
reason bench bookkeeping --strategies mcts ets --widths 16,4096 --depth 20

CPU microseconds per branch and step, and bytes at the peak per node of the tree. A table first; the last line of stdout
is one JSON object.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from reason.bench.arguments import positive_int, positive_ints, run_benchmark
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench bookkeeping", __doc__)
    parser.add_argument("--strategies", nargs="+", help="default: all that this bench knows")
    parser.add_argument("--widths", type=positive_ints, default=(16, 256, 1024), help="branches at a time")
    parser.add_argument("--depth", type=positive_int, default=10, help="steps of a solution")
    parser.add_argument("--threads", type=positive_int, default=1, help="torch threads")
    return parser


def bench_bookkeeping(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.bookkeeping import list_strategies, measure_search

    known = list_strategies(16, args.depth)
    if unknown := [name for name in args.strategies or () if name not in known]:
        raise SystemExit(f"--strategies: there is no {', '.join(unknown)}; choose from {', '.join(known)}")
    table = Table(
        "strategy", "branches", "steps written", "nodes", "us per branch and step", "bytes per node", box=None
    )
    points = []
    for width in args.widths:
        for name in args.strategies or known:
            cost = measure_search(name, width, args.depth)
            cells = (
                f"{cost.branch_steps:,}",
                f"{cost.nodes:,}",
                f"{cost.us_per_step:.0f}",
                f"{cost.bytes_per_node:,.0f}",
            )
            table.add_row(name, f"{width:,}", *cells)
            points.append(cost.to_json())
    console.print(table)
    return {"bench": "bookkeeping", "depth": args.depth, "points": points}


def run_program() -> None:
    run_benchmark(make_parser(), bench_bookkeeping)

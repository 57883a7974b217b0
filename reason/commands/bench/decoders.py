"""Measure whole runs of the local engine with the compiled decoder beside the same runs with the eager one.

reason bench decoders                              the bundled target, 1 to 64 branches
reason bench decoders --model FOLDER --branches 1,16 --prompt 300 --new 60 --repeats 5

CPU seconds of the process, which a busy machine changes least; the runs alternate. A table first; the last line of
stdout is one JSON object.
"""

from __future__ import annotations

import argparse
from statistics import median

from rich.console import Console
from rich.table import Table

from reason.bench.arguments import describe_length, positive_int, positive_ints, run_benchmark
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench decoders", __doc__)
    parser.add_argument("--model", default="bundled:target", help="checkpoint (bundled:NAME, folder, hub id)")
    parser.add_argument("--branches", type=positive_ints, default=(1, 4, 16, 64))
    parser.add_argument("--prompt", type=positive_int, default=300, help="prompt tokens")
    parser.add_argument("--new", type=positive_int, default=60, help="new tokens per branch")
    parser.add_argument("--repeats", type=positive_int, default=5)
    parser.add_argument("--threads", type=positive_int, default=1, help="torch threads")
    return parser


def bench_decoders(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.decoders import compare_decoders
    from reason.models.checkpoint import find_model

    source = find_model(args.model).source
    table = Table("branches", "compiled, CPU s", "eager, CPU s", "eager / compiled", "lowest", "highest", box=None)
    points = []
    console.print(describe_length(decoders=2, sizes=len(args.branches), repeats=args.repeats))
    for comparison in compare_decoders(
        source, branches=args.branches, prompt=args.prompt, new=args.new, repeats=args.repeats
    ):
        medians, ratios = map(median, comparison.seconds.values()), comparison.speedups
        numbers = (*medians, median(ratios), ratios[0], ratios[-1])
        table.add_row(str(comparison.branches), *(f"{number:.3f}" for number in numbers))
        points.append(comparison.to_json())
    console.print(table)
    return {"bench": "decoders", "model": args.model, "prompt": args.prompt, "new": args.new, "points": points}


def run_program() -> None:
    run_benchmark(make_parser(), bench_decoders)

"""Measure what the draft table of an earlier run is worth: tokens per forward pass, with it and without it.

reason bench remember                                         three seeds; some minutes
reason bench remember --problems 60 --nodes 16 --decays 0.9,0.5 --out FILE.md

The table of a first run is used for the same problems with another seed, for other problems of the same kinds, and for
a model whose weights have changed. Arguments of the form NAME=VALUE are settings of all runs. A table first; the last
line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.console import Console

from reason.bench.arguments import add_report_argument, describe_length, positive_int, run_benchmark
from reason.commands import typed


def _shares(text: str) -> tuple[float, ...]:
    """`0.9,0.5` as numbers in (0, 1). Raises: ArgumentTypeError."""
    numbers = tuple(float(part) for part in text.split(","))
    if not all(0 < number < 1 for number in numbers):
        raise argparse.ArgumentTypeError(f"must be numbers in (0, 1), got {text}")
    return numbers


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench remember", __doc__)
    parser.add_argument("settings", nargs="*", help="settings of `reason solve`, for all runs")
    parser.add_argument("--problems", type=positive_int, default=30)
    parser.add_argument("--samples", type=positive_int, default=4, help="of each problem")
    parser.add_argument("--nodes", type=positive_int, default=8, help="draft nodes of every round")
    parser.add_argument("--seeds", type=positive_int, default=3, help="number of seeds, each with its own first run")
    parser.add_argument("--decays", type=_shares, default=(0.99, 0.5, 0.1), help="values of speculation.remember_decay")
    parser.add_argument("--noise", type=float, default=0.05, help="by how much weights change, relative to themselves")
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    add_report_argument(parser)
    return parser


def bench_remember(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.engine import describe_machine
    from reason.bench.remember import RememberBench, TableGain, measure_seed, summarize_gains
    from reason.bench.remember_report import format_report, make_table

    bench = RememberBench(args.problems, args.samples, args.nodes, args.decays, args.noise, tuple(args.settings))
    console.print(describe_length(seeds=args.seeds, runs=bench.num_runs, problems=bench.problems))
    gains = list[TableGain]()
    for seed in range(args.seeds):
        for gain in measure_seed(bench, seed):
            gains.append(gain)
            console.print(f"seed {seed}, {gain.case}: {gain.remembering:.2f}, without a table {gain.without:.2f}")
    cases = summarize_gains(gains)
    console.print(make_table(cases).markdown_section(), markup=False)
    result = {"bench": "remember", **asdict(bench), "seeds": args.seeds, "cases": cases, "machine": describe_machine()}
    if args.out:
        args.out.write_text(format_report(result, typed.join_command("bench remember")), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_remember)

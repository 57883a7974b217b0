"""Measure what a user waits for: time to the first line, to the end, the longest silence, and memory.

reason bench start                                       --help, a wrong setting, doctor, a question, a first run
reason bench start --cases question --repeats 10 --out FILE.md

Medians of runs in turns. A case with caches has a run before that fills them and is not counted; `first_run` begins
with empty ones. A table first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse

from rich.console import Console

from reason.bench.arguments import (
    add_report_argument,
    describe_length,
    name_list,
    positive_int,
    require_names,
    run_benchmark,
)
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench start", __doc__)
    parser.add_argument("--cases", type=name_list, help="NAME,NAME; default: all")
    parser.add_argument("--repeats", type=positive_int, default=5)
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    add_report_argument(parser)
    return parser


def bench_start(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.start import CASES, format_report, make_table, measure_starts, summarise_case

    names = args.cases or list(CASES)
    require_names("--cases", names, CASES)
    console.print(describe_length(cases=len(names), repeats=args.repeats))
    cases = [summarise_case(name, runs) for name, runs in measure_starts(names, args.repeats).items()]
    make_table(cases).print_table(console)
    # imported late: it has torch, whose memory each measured process would begin with
    from reason.bench.engine import describe_machine

    result: dict[str, object] = {"bench": "start", "cases": cases, "machine": describe_machine()}
    if args.out:
        args.out.write_text(format_report(result, typed.join_command("bench start")), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_start)

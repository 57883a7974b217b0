"""Measure what loading a checkpoint of a real shape takes: seconds, and the memory that it needs and keeps.

reason bench load                                        a 0.5B shape: our decoders beside transformers
reason bench load --shapes qwen2.5-0.5b,qwen2.5-1.5b --loaders compiled,transformers --out FILE.md

Medians of runs in turns, each in a process of its own. The checkpoint has random weights and is removed at the end: it
takes 2 bytes of the disk per weight. Linux only. A table first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

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
    parser = typed.make_parser("bench load", __doc__)
    parser.add_argument("--shapes", type=name_list, default=["qwen2.5-0.5b"], help="NAME,NAME of `reason bench puppet`")
    parser.add_argument("--loaders", type=name_list, help="NAME,NAME; default: all")
    parser.add_argument("--repeats", type=positive_int, default=3)
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    add_report_argument(parser)
    return parser


def bench_load(args: argparse.Namespace, console: Console) -> dict[str, object]:
    # imported late: other benchmarks need no torch, whose import takes a second
    from reason.bench.engine import describe_machine
    from reason.bench.load import LOADERS, format_report, make_table, measure_loads, summarise_loads, write_checkpoint
    from reason.bench.puppet import find_shape

    loaders = args.loaders or list(LOADERS)
    require_names("--loaders", loaders, LOADERS)
    shapes = {name: find_shape(name) for name in args.shapes}
    console.print(describe_length(shapes=len(shapes), loaders=len(loaders), repeats=args.repeats))
    cases: list[dict[str, object]] = []
    for name, shape in shapes.items():
        with TemporaryDirectory() as folder:
            write_checkpoint(shape, Path(folder))
            loads = measure_loads(Path(folder), loaders, args.repeats)
        cases.append({"shape": name, "weights": shape.count_weights(), "loaders": summarise_loads(loads)})
    make_table(cases).print_table(console)
    result: dict[str, object] = {"bench": "load", "cases": cases, "machine": describe_machine()}
    if args.out:
        args.out.write_text(format_report(result, typed.join_command("bench load")), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_load)

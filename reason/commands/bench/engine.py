"""Measure the local engine beside transformers: tokens per second, KV held, distance to the machine's limit.

reason bench engine                                   the bundled target, 1 to 64 branches
reason bench engine --branches 1,16 --prompt 300 --out FILE.md

Tables first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse

from rich.console import Console

from reason.bench.arguments import (
    add_report_argument,
    add_torch_arguments,
    describe_length,
    positive_int,
    positive_ints,
    run_benchmark,
)
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench engine", __doc__)
    parser.add_argument("--model", help="checkpoint (bundled:NAME, folder, hub id); default: the bundled target")
    parser.add_argument("--branches", type=positive_ints, default=(1, 4, 16, 64))
    parser.add_argument("--prompt", type=positive_ints, default=(300, 600), help="prompt tokens, one or several")
    parser.add_argument("--new", type=positive_int, default=100, help="new tokens per branch")
    parser.add_argument("--repeats", type=positive_int, default=3)
    add_torch_arguments(parser)
    add_report_argument(parser)
    return parser


def bench_engine(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.engine import compare_modules, describe_machine, measure_points, open_model
    from reason.bench.engine_report import format_report, print_report
    from reason.models.checkpoint import bundled_names, find_model

    name = args.model or ("bundled:target" if "target" in bundled_names() else None)
    console.print(f"model: {name or 'random weights of the bundled size (there is no bundled target yet)'}")
    model, backend = open_model(name and find_model(name).source, args.device, args.dtype)
    sizes = {"sizes": len(args.branches) * len(args.prompt), "repeats": args.repeats}
    console.print(f"each engine: {describe_length(**sizes)}")
    points = measure_points(
        model,
        backend,
        branches=args.branches,
        prompts=args.prompt,
        new=args.new,
        repeats=args.repeats,
        on_run=lambda name, n, rate: console.print(f"{name:>15} {n:3d} branches {rate:8,.0f} tokens/s"),
    )
    result = {
        "bench": "engine",
        "model": name,
        "device": str(backend.device),
        "dtype": str(backend.dtype),
        "prompt": args.prompt,
        "new": args.new,
        "repeats": args.repeats,
        "modules_vs_fused": compare_modules(model, backend, args.branches),
        "points": [point.to_json() for point in points],
        "machine": describe_machine(),
    }
    print_report(points, console)
    if args.out:
        args.out.write_text(format_report(points, result, typed.join_command("bench engine")), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_engine)

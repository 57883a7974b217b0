"""Measure rounds of the compiled decoder of a CPU beside rounds of the eager one, in float32 or bfloat16.

reason bench decoders                              the bundled target, 1 to 64 branches
reason bench decoders --model FOLDER --branches 1,16 --prompt 300 --new 60 --repeats 5
reason bench decoders --shape qwen2.5-0.5b --new 8 --out FILE.md     random weights of a real model's shape
reason bench decoders --shape qwen2.5-0.5b --decoders compiled:bfloat16,compiled,eager:bfloat16

The runs alternate. A table first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from reason.bench.arguments import (
    add_report_argument,
    describe_length,
    name_list,
    positive_int,
    positive_ints,
    require_names,
    run_benchmark,
)
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench decoders", __doc__)
    parser.add_argument("--model", default="bundled:target", help="checkpoint (bundled:NAME, folder, hub id)")
    parser.add_argument("--shape", help="a random model instead: qwen2.5-0.5b, -1.5b, -7b or -32b")
    parser.add_argument(
        "--decoders", type=name_list, default=("compiled", "eager"),
        help="at least two of compiled, eager, compiled:bfloat16 and eager:bfloat16; the others are compared with the "
        "first (default: compiled,eager)",
    )  # fmt: skip
    parser.add_argument("--branches", type=positive_ints, default=(1, 4, 16, 64))
    parser.add_argument("--prompt", type=positive_int, default=300, help="prompt tokens")
    parser.add_argument("--new", type=positive_int, default=60, help="new tokens per branch, at least 2")
    parser.add_argument("--repeats", type=positive_int, default=5)
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    add_report_argument(parser)
    return parser


def bench_decoders(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.decoders import (
        KINDS,
        compare_decoders,
        format_report,
        load_checkpoint,
        make_random_model,
        make_table,
    )
    from reason.bench.engine import describe_machine
    from reason.config.errors import ConfigError
    from reason.models.checkpoint import find_model

    if args.new < 2:
        sys.exit(f"--new must be at least 2, got {args.new}: one token has no round without the prompt")
    require_names("--decoders", args.decoders, KINDS)
    if len(set(args.decoders)) < 2:
        sys.exit(f"--decoders must be two or more of {', '.join(KINDS)}, got {','.join(args.decoders)}")
    console.print(describe_length(decoders=len(args.decoders), sizes=len(args.branches), repeats=args.repeats))
    try:
        backends = (
            make_random_model(args.shape, args.decoders)
            if args.shape
            else load_checkpoint(find_model(args.model).source, args.decoders)
        )
    except (ValueError, ConfigError) as error:
        sys.exit(str(error))
    comparisons = compare_decoders(
        backends, branches=args.branches, prompt=args.prompt, new=args.new, repeats=args.repeats
    )
    points = [comparison.to_json() for comparison in comparisons]
    make_table(points).print_table(console)
    result: dict[str, object] = {
        "bench": "decoders", "model": args.shape or args.model, "prompt": args.prompt, "new": args.new,
        "repeats": args.repeats, "points": points, "machine": describe_machine(),
    }  # fmt: skip
    if args.out:
        args.out.write_text(format_report(result, typed.join_command("bench decoders")), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_decoders)

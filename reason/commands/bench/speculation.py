"""Measure speculative decoding: tokens accepted per forward pass, and speed relative to plain decoding.

reason bench speculation --quick                      small sizes, to see that it runs
reason bench speculation --only nodes --out FILE.md   acceptance at equal numbers of draft nodes
reason bench speculation --only speed                 tokens per second beside plain decoding
reason bench speculation --only speed --model thinker --kv-mib 1024   the same over long thoughts

Tables first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from reason.bench.arguments import (
    accept_old_flag,
    add_report_argument,
    add_torch_arguments,
    name_list,
    positive_int,
    positive_ints,
    report_path,
    run_benchmark,
    temperature_list,
)
from reason.commands import typed


def _prefix(text: str) -> str:
    """The beginning of names of plots, whose folder is made at once. Raises: ArgumentTypeError."""
    report_path(f"{text}-speed.png")
    return text


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench speculation", __doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes where none are given; shows no difference")
    parser.add_argument("--only", choices=["nodes", "speed"], help="one of the two parts")
    parser.add_argument("--model", choices=["bundled", "thinker"], default="bundled", help="thinker: long thoughts")
    parser.add_argument("--trajectories", type=positive_int, help="branches of each problem")
    parser.add_argument("--max-tokens", type=positive_int, help="per trajectory; default: the model's limit")
    parser.add_argument("--kv-mib", type=positive_int, help="size of the KV pool of an engine")
    parser.add_argument(
        "--plots", type=_prefix, metavar="PREFIX", help="draw PREFIX-acceptance.png and PREFIX-speed.png"
    )
    add_torch_arguments(parser)
    add_report_argument(parser)
    nodes = parser.add_argument_group("acceptance at equal numbers of draft nodes")
    setups = nodes.add_argument("--drafter-setups", type=name_list, help="NAME,NAME")
    nodes.add_argument("--problems", type=positive_int, help="held-out problems of each family")
    nodes.add_argument("--nodes", type=positive_ints, help="draft nodes for each branch")
    nodes.add_argument("--temperatures-at-equal-nodes", type=temperature_list)
    nodes.add_argument("--live-at-equal-nodes", type=positive_int, help="branches decoded together")
    nodes.add_argument("--tuning-problems", type=positive_int, help="training problems of each family, for templates")
    nodes.add_argument("--tuning-trajectories", type=positive_int, help="branches of each of them")
    nodes.add_argument("--tuning-nodes", type=positive_int, help="nodes of the static tree that tuning starts from")
    nodes.add_argument("--templates", type=Path, help="folder that learned templates are read from and written to")
    speed = parser.add_argument_group("speed against plain decoding")
    speed_setups = speed.add_argument("--speed-setups", type=name_list, help="NAME,NAME")
    speed.add_argument("--speed-problems", type=positive_int, help="held-out problems of each family")
    speed.add_argument("--live", type=positive_ints, help="branches decoded together")
    speed.add_argument("--temperatures", type=temperature_list, help="only the first one is repeated")
    speed.add_argument("--repeats", type=positive_int)
    accept_old_flag(parser, "--contenders", setups)
    accept_old_flag(parser, "--racers", speed_setups)
    return parser


def bench_speculation(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.engine import describe_machine
    from reason.bench.plots import plot_acceptance, plot_speed, require_matplotlib
    from reason.bench.speculation import QUICK, SpeculationBench, SpeculationSettings
    from reason.bench.speculation_report import format_report, print_report
    from reason.bench.workload import BundledTarget

    given = {field.name: getattr(args, field.name) for field in fields(SpeculationSettings)}
    base = QUICK if args.quick else SpeculationSettings()
    try:
        settings = replace(base, **{key: value for key, value in given.items() if value is not None})
        if args.plots:
            require_matplotlib()
    except ValueError as error:
        sys.exit(str(error))
    target = BundledTarget.load(args.model, device=args.device, dtype=args.dtype)
    with nullcontext(args.templates) if args.templates else TemporaryDirectory() as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        bench = SpeculationBench(
            target, settings, Path(folder), log_line=lambda line: console.print(line, highlight=False)
        )
        result = bench.measure_parts(nodes=args.only != "speed", speed=args.only != "nodes")
    result |= {"device": str(target.backend.device), "dtype": str(target.backend.dtype), "machine": describe_machine()}
    print_report(result, console)
    plots = []
    for part, plot in (("acceptance", plot_acceptance), ("speed", plot_speed)):
        if args.plots and result[part]:
            plots.append(Path(f"{args.plots}-{part}.png"))
            plot(plots[-1], result)
    if args.out:
        links = [os.path.relpath(plot, args.out.parent) for plot in plots]
        args.out.write_text(format_report(result, typed.join_command("bench speculation"), links), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_speculation)

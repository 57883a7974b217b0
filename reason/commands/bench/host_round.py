"""Time what the host does in a round, with a model that is free: at several numbers of branches and contexts.

reason bench host_round                                         plain, and stand with 4 nodes a branch
reason bench host_round --speculation off --branches 64 --contexts 500,32000 --attention blocks
reason bench host_round --plugin --branches 48 --nodes 11       our plug-in inside an SGLang server

A table first; the last line of stdout is one JSON object. On a busy machine the times mean nothing.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from reason.bench.arguments import name_list, positive_int, positive_ints, run_benchmark
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench host_round", __doc__)
    parser.add_argument("--speculation", type=name_list, default=("off", "stand"), help="options to compare")
    parser.add_argument("--plugin", action="store_true", help="rounds of the SGLang plug-in instead of the engine's")
    parser.add_argument("--nodes", type=positive_int, default=4, help="draft nodes per branch")
    parser.add_argument("--branches", type=positive_ints, default=(1, 16, 64))
    parser.add_argument("--contexts", type=positive_ints, default=(500, 4000, 16000), help="tokens of each branch")
    parser.add_argument("--attention", choices=("blocks", "segments"), default="segments")
    parser.add_argument("--rounds", type=positive_int, default=30, help="rounds that are timed")
    parser.add_argument("--warmup", type=positive_int, default=20, help="rounds before them")
    parser.add_argument("--threads", type=positive_int, default=1, help="torch threads")
    return parser


def bench_plugin_rounds(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.plugin_round import PLUGIN_PHASES, measure_plugin_rounds

    table = Table("requests", "context", "nodes", *PLUGIN_PHASES, "border", "host", "device", box=None)
    costs = []
    for requests in args.branches:
        for context in args.contexts:
            for nodes in (0, args.nodes):
                cost = measure_plugin_rounds(requests, context, nodes, rounds=args.rounds, warmup=args.warmup)
                labels = (str(requests), f"{context:,}", str(nodes))
                figures = (
                    *(cost.phases[phase] for phase in PLUGIN_PHASES),
                    cost.border_ms,
                    cost.host_ms,
                    cost.device_ms,
                )
                table.add_row(*labels, *(f"{ms:.3f}" for ms in figures))
                costs.append(cost)
    console.print(f"milliseconds per round, medians of {args.rounds} rounds; border: requests, packing, committing;")
    console.print("host: the border, drafting and learning")
    console.print(table)
    return {"bench": "host_round", "points": [cost.to_json() for cost in costs]}


def bench_host_rounds(args: argparse.Namespace, console: Console) -> dict[str, object]:
    if args.plugin:
        return bench_plugin_rounds(args, console)
    from reason.bench.host_round import PHASES, find_growth, measure_host_rounds
    from reason.config.compose import compose_settings
    from reason.engines.speculation import validate_speculation

    table = Table("speculation", "branches", "context", "rows", *PHASES, "host", "device", box=None)
    costs, growing = [], []
    for option in args.speculation:
        fixed = [] if option == "off" else ["controller=fixed", f"controller.nodes={args.nodes}"]
        settings, _ = compose_settings([f"speculation={option}", *fixed])
        spec = validate_speculation(settings)
        for branches in args.branches:
            points = []
            for context in args.contexts:
                cost = measure_host_rounds(
                    option, spec.make_speculation(None, ""), branches, context,
                    rounds=args.rounds, warmup=args.warmup, attention=args.attention,
                )  # fmt: skip
                figures = (*cost.phases.values(), cost.total_ms, cost.device_ms)
                labels = (option, str(branches), f"{context:,}", f"{cost.rows:.0f}")
                table.add_row(*labels, *(f"{ms:.3f}" for ms in figures))
                points.append(cost)
            growth = ", ".join(f"{phase} {factor:.1f}x" for phase, factor in find_growth(points).items())
            growing.append(f"{option}, {branches} branches: {growth or 'nothing'}")
            costs += points
    console.print(f"milliseconds per round, medians of {args.rounds} rounds, {args.attention}")
    console.print(table)
    console.print(f"grows from {min(args.contexts):,} to {max(args.contexts):,} tokens of context:")
    for line in growing:
        console.print(f"  {line}", highlight=False)
    return {"bench": "host_round", "attention": args.attention, "points": [cost.to_json() for cost in costs]}


def run_program() -> None:
    run_benchmark(make_parser(), bench_host_rounds)

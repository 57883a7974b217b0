"""Measure what a token costs the engine's own code at 1,000 and at 32,000 tokens of context, with a model that is free.

reason bench context_cost                                       speculation off, stand and suffix, 4 branches
reason bench context_cost --speculation stand --branches 1,16 --contexts 1024,16384

A table first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from reason.bench.arguments import name_list, positive_int, positive_ints, run_benchmark
from reason.commands import typed

LEAST_CONTEXT = 256  # a shorter one is nearly all prompt


def _contexts(text: str) -> tuple[int, ...]:
    """`1024,16384` as lengths. Raises: ArgumentTypeError."""
    lengths = positive_ints(text)
    if min(lengths) < LEAST_CONTEXT:
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_CONTEXT} each, got {text}")
    return lengths


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench context_cost", __doc__)
    parser.add_argument("--speculation", type=name_list, default=("off", "stand", "suffix"), help="options to compare")
    parser.add_argument("--branches", type=positive_ints, default=(4,))
    parser.add_argument("--contexts", type=_contexts, default=(1024, 32768), help="at least 256 tokens each")
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    return parser


def bench_context_cost(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.context_cost import measure_context_cost
    from reason.config.compose import compose_settings
    from reason.engines.speculation import validate_speculation

    costs_at = [f"us/token at {context:,}" for context in args.contexts]
    table = Table("speculation", "branches", *costs_at, "last over first", box=None)
    points = []
    for option in args.speculation:
        settings, _ = compose_settings([f"speculation={option}"])
        spec = validate_speculation(settings)
        for branches in args.branches:
            # a short run first: compiled functions are compiled, and the machine is awake
            measure_context_cost(spec.make_speculation(None, ""), branches, [256])
            costs = measure_context_cost(spec.make_speculation(None, ""), branches, args.contexts)
            ratio = costs[-1].token_us / costs[0].token_us
            table.add_row(option, str(branches), *(f"{cost.token_us:.0f}" for cost in costs), f"{ratio:.2f}")
            points += [{"speculation": option, "branches": branches, **cost.to_json()} for cost in costs]
    console.print(table)
    return {"bench": "context_cost", "points": points}


def run_program() -> None:
    run_benchmark(make_parser(), bench_context_cost)

"""Trace one round of the engine at the sizes of real models, without a GPU: launches, traffic, copies, waits, time.

reason bench trace_round                                        Qwen2.5 7B on an H100
reason bench trace_round --models qwen2.5-32b --card a100 --temperature 0.6 --top-p 0.95 --phases
reason bench trace_round --all --out FILE.md                    every size, as Markdown

Tables first; the last line of stdout is one JSON object. Nothing is downloaded: weights have shapes and no values.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from reason.bench.arguments import (
    add_report_argument,
    count_list,
    name_list,
    positive_int,
    positive_ints,
    run_benchmark,
)
from reason.bench.report import join_report
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench trace_round", __doc__)
    parser.add_argument("--models", type=name_list, default=("qwen2.5-7b",), help="qwen2.5-0.5b to qwen2.5-32b")
    parser.add_argument("--workloads", type=name_list, default=("best_of_n", "search"), help="best_of_n, search")
    parser.add_argument("--branches", type=positive_ints, default=(1, 4, 16, 64))
    parser.add_argument("--problems", type=positive_int, default=8, help="of a search")
    parser.add_argument("--nodes", type=count_list, default=(0, 4, 16), help="draft nodes per branch on average")
    parser.add_argument("--attention", choices=("blocks", "segments"), default="segments")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--card", default="h100", help="h100, h200, a100, l4, or any name with the two options below")
    parser.add_argument("--bandwidth", type=float, help="TB/s that programs reach on the card")
    parser.add_argument("--peak", type=float, help="TFLOPS in bfloat16 that programs reach on the card")
    parser.add_argument("--launch-us", type=float, default=7.5, help="time of one launch on the host")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths and the drafts")
    parser.add_argument("--phases", action="store_true", help="print the phases of each round, too")
    parser.add_argument("--all", action="store_true", help="all models and phases, two ways of sampling, as Markdown")
    parser.add_argument("--threads", type=positive_int, default=1, help=argparse.SUPPRESS)
    add_report_argument(parser)
    return parser


def bench_trace(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.cards import find_card, make_card
    from reason.bench.round_cases import ALL_MODELS, REASONING_SAMPLING, TraceGrid, make_sampling
    from reason.bench.round_report import describe_assumptions, make_tables, print_tables, to_json

    try:
        card = (
            find_card(args.card)
            if args.peak is None and args.bandwidth is None
            else make_card(args.card, args.bandwidth, args.peak)
        )
        params = make_sampling(args.temperature, args.top_p, args.top_k)
        grid = TraceGrid(
            ALL_MODELS if args.all else args.models,
            args.workloads,
            args.branches,
            args.nodes,
            [params, REASONING_SAMPLING] if args.all else [params],
            args.problems,
            args.attention,
            args.seed,
        )
    except ValueError as error:
        sys.exit(str(error))
    cases = []
    for case in grid.trace_cases():
        console.print(f"{case.title}: {' '.join(case.cells)}", style="dim", highlight=False)
        cases.append(case)
    tables = make_tables(cases, card, args.launch_us, phases=args.phases or args.all)
    assumptions = describe_assumptions(card, args.launch_us)
    sections = [table.markdown_section() for table in tables]
    report = join_report(
        "One round of the engine, traced", typed.join_command("bench trace_round"), [assumptions, *sections]
    )
    if args.out:
        args.out.write_text(report, encoding="utf-8")
    if args.all:
        console.print(report, markup=False, soft_wrap=True)
    else:
        print_tables(tables, console)
        console.print(assumptions)
    rounds = [to_json(case, card, args.launch_us) for case in cases]
    return {"bench": "trace_round", "card": vars(card), "rounds": rounds}


def run_program() -> None:
    run_benchmark(make_parser(), bench_trace)

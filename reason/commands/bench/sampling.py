"""Measure the sampler beside the plain definition: the noise of every id, and a sort of the vocabulary for filters.

reason bench sampling                              1 and 16 rows of 152,064 ids
reason bench sampling --rows 1,16,64 --vocab 128256 --repeats 5

The two alternate in one process, in one thread. A table first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
from statistics import median

from rich.console import Console
from rich.table import Table

from reason.bench.arguments import positive_int, positive_ints, run_benchmark
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench sampling", __doc__)
    parser.add_argument("--rows", type=positive_ints, default=(1, 16), help="rows of logits: branches and draft nodes")
    parser.add_argument("--vocab", type=positive_int, default=152_064, help="size of the vocabulary")
    parser.add_argument("--repeats", type=positive_int, default=5)
    parser.add_argument("--threads", type=positive_int, default=1, help="torch threads")
    return parser


def bench_sampling(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.sampling import compare_sampling

    table = Table("rows", "setting", "sampler, ms", "definition, ms", "ratio", "lowest", "equal tokens", box=None)
    points = []
    for point in compare_sampling(args.rows, args.vocab, args.repeats):
        numbers = point.ms, point.definition_ms, median(point.speedups), point.speedups[0]
        table.add_row(str(point.rows), point.setting, *(f"{n:.2f}" for n in numbers), f"{point.equal_tokens}")
        points.append(point.to_json())
    console.print(table)
    return {"bench": "sampling", "vocab": args.vocab, "points": points}


def run_program() -> None:
    run_benchmark(make_parser(), bench_sampling)

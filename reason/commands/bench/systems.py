"""Measure the published systems that fit here, in one bench, and write docs/systems.md.

reason bench systems --recordings FILE             measures what the file of figures lacks, and writes the page
reason bench systems --only SpecTr DySpec --again  measures these again
reason bench systems --page                        writes the page from the figures that there are

Systems that decode run beside plain decoding, in turns, on solutions of the bundled writer and on thoughts of the
bundled thinker; searches run beside best-of-N. The file of figures is written after each system: the same command
continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from reason.bench.arguments import describe_length, positive_int, report_path, run_comparison
from reason.bench.report import describe_facts
from reason.commands import typed
from reason.config.errors import ConfigError

if TYPE_CHECKING:
    from reason.bench.replay import EncodedProblem
    from reason.bench.systems.rows import SystemRow

PAGE, FIGURES = Path("docs/systems.md"), Path("benchmarks/systems_cpu.json")


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench systems", __doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="systems, by their names in the page")
    parser.add_argument("--again", action="store_true", help="measure systems that have figures, too")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--problems", type=positive_int, default=6, help="problems of a run that decodes")
    parser.add_argument("--pairs", type=positive_int, default=3, help="runs with the system, each beside a plain one")
    parser.add_argument("--graded-problems", type=positive_int, default=40, help="problems where answers are compared")
    parser.add_argument("--workloads", nargs="+", default=["writer", "thinker"], choices=["writer", "thinker"])
    parser.add_argument("--recordings", type=Path, help="recorded texts of a real model, as for `reason bench replay`")
    parser.add_argument("--replayed", type=positive_int, default=10, help="of these, problems that are replayed")
    parser.add_argument("--figures", type=report_path, default=str(FIGURES), help="what was measured; read and written")
    parser.add_argument("--out", type=report_path, default=str(PAGE), help="the page")
    return parser


def measure_systems(args: argparse.Namespace, console: Console) -> str:
    """Returns the page. *Mutates* the file of figures."""
    from reason.bench.engine import describe_machine
    from reason.bench.systems.figures import SystemFigures
    from reason.bench.systems.measure import list_parts
    from reason.bench.systems.page import format_page
    from reason.bench.systems.rows import load_rows

    rows = load_rows()
    if unknown := sorted(set(args.only) - {row.name for row in rows}):
        raise ValueError(f"--only must name systems of {', '.join(row.name for row in rows)}; got {', '.join(unknown)}")
    saved = SystemFigures.read(args.figures)
    chosen = [row for row in rows if row.bench != "none" and (not args.only or row.name in args.only)]
    parts_of = {row: list_parts(row, args.workloads, has_recordings=args.recordings is not None) for row in chosen}
    if not args.again:
        parts_of = {
            row: [part for part in parts if part not in saved.figures.get(row.name, ())]
            for row, parts in parts_of.items()
        }
    missing = {} if args.page else {row: parts for row, parts in parts_of.items() if parts}
    # without the load: that of a moment says little of hours
    machine = {name: value for name, value in describe_machine().items() if name != "load"}
    source = f"`{typed.join_command('bench systems')}`; {describe_facts(machine)}."
    if missing:
        console.print(describe_length(systems=len(missing), workloads=len(args.workloads)))
    for row, parts in missing.items():
        console.print(f"{row.name}: {row.settings}", markup=False)
        try:
            measured = _measure(row, parts, args)
        except ConfigError as error:
            if not row.needs:
                raise
            console.print(f"{row.name} is not measured now: {error}; it needs {row.needs}", markup=False)
            continue
        saved.add(row.name, measured, source)
        saved.write(args.figures)
    return format_page(rows, saved.figures, *saved.describe_sources())


def _measure(row: SystemRow, parts: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    from reason.bench.systems.measure import measure_row, replay_row

    # where texts may differ, answers count, which needs more problems; then one pair is long enough
    problems, pairs = (args.problems, args.pairs) if row.bench == "decoding" else (args.graded_problems, 1)
    workloads = [part for part in parts if part != "recordings"]
    measured = measure_row(row, problems=problems, pairs=pairs, workloads=workloads) if workloads else {}
    if "recordings" in parts:
        measured["recordings"] = replay_row(row, _read_recordings(args.recordings, args.replayed))
    return measured


def _read_recordings(file: Path, count: int) -> Sequence[EncodedProblem]:
    from reason.bench.recorded_target import learn_tokenizer
    from reason.bench.replay import encode_texts, read_recordings

    recordings = read_recordings(file)
    return encode_texts(recordings[:count], learn_tokenizer(recordings, count))


def run_program() -> int:
    return run_comparison(make_parser(), measure_systems, kept_in="figures")

"""Gathers runs and sweeps into one page and one table, compares runs, or exports their results and trees.

reason report multirun/DATE/TIME                    report.html and report.md in that folder
reason report outputs multirun --out mine.html      all runs below both folders; mine.md beside the page
reason report multirun --where search=ets --where search.n=16    only the runs with these settings
reason report compare outputs/A outputs/B           compare.html and compare.md: pairs of runs, and problem by problem
reason report curves outputs/DATE/TIME              accuracy against the number of saved samples: pass@k, maj@k, ...
reason report export multirun/DATE/TIME --format parquet    problems.parquet and samples.parquet, all runs in one
reason report trees outputs/DATE/TIME --format dot --out drawings    one file per tree, for Graphviz
reason report trees outputs/DATE/TIME --format rollouts    rollouts.jsonl, a line per tree, to train on

The page shows accuracy against tokens, forward passes, seconds and KV. Unfinished runs are shown with the results they
have; runs that cannot be read, or that have a broken row, are listed with the reason and are not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from reason.commands import typed
from reason.runs.compare import compare_runs, list_common_problems
from reason.runs.curves import compute_curves, curve_rows
from reason.runs.export_rows import TABLE_FORMATS, export_rows
from reason.runs.export_trees import EXPORT_FORMATS, ExportFormat, export_trees
from reason.runs.gather import COSTS, FoundRun, find_runs
from reason.runs.json_files import write_atomically
from reason.runs.pages.compare import compare_page
from reason.runs.pages.report import front_of_runs, report_page
from reason.runs.papers.between_runs import describe_metrics, describe_pairs
from reason.runs.summary import SHAPE_STATISTICS
from reason.runs.tables import format_markdown


def runs_table(runs: Sequence[FoundRun]) -> str:
    """Formats the runs as a Markdown table; runs on a Pareto front are marked with its cost."""
    fronts = {cost: set(front_of_runs(runs, cost)) for cost in COSTS}
    with_shape = any(run.measured is not None and run.measured.shape for run in runs)
    shape_names = list(SHAPE_STATISTICS) if with_shape else []
    rows = []
    for i, run in enumerate(runs):
        marks = ", ".join(cost for cost, places in fronts.items() if i in places)
        state = run.state if run.broken is None else f"{run.state}: {run.broken}"
        state += "" if run.lossy is None else f" (lossy: {run.lossy})"
        numbers = [""] * (len(COSTS) + 3 + len(shape_names))
        if run.measured is not None:
            m = run.measured
            interval = "" if m.accuracy is None else f"{m.accuracy.low:.3f} to {m.accuracy.high:.3f}"
            accuracy = "" if m.accuracy is None else f"{m.accuracy.value:.3f}"
            shape = [f"{m.shape[name]:.2f}" if name in m.shape else "" for name in shape_names]
            numbers = [accuracy, interval, *(f"{m.costs[cost]:,.1f}" for cost in COSTS), str(m.problems), *shape]
        rows.append([run.label, state, *numbers, marks])
    header = ["run", "state", "accuracy", "interval", *COSTS, "problems", *shape_names, "best for its"]
    return format_markdown(header, rows)


def report_title(runs: Sequence[FoundRun]) -> str:
    """Returns the number of runs, with their tasks and models."""
    parts = [sorted({str(run.metadata[key]) for run in runs if key in run.metadata}) for key in ("task", "model")]
    return f"{len(runs)} runs: " + " with ".join(", ".join(part) for part in parts if part)


def write_report(folders: Sequence[Path], out: Path, where: Mapping[str, str] | None = None) -> None:
    """Writes the page and, beside it, the table; prints the table. Raises: ValueError, OSError."""
    runs = find_runs(folders, where)
    table = runs_table(runs)
    meanings = [f"- {name}: {meaning}" for name, meaning in (COSTS | SHAPE_STATISTICS).items()]
    papers = describe_pairs(runs)
    if papers:
        meanings += [f"- {meaning}" for meaning in describe_metrics()]
    parts = [f"# {report_title(runs)}", table, "\n".join(f"- {line}" for line in papers), "\n".join(meanings)]
    text = "\n\n".join(part for part in parts if part)
    write_atomically(out, report_page(runs, report_title(runs), out.parent.resolve()).encode())
    write_atomically(out.with_suffix(".md"), f"{text}\n".encode(errors="backslashreplace"))
    print(table)
    for line in papers:
        print(line)
    print(f"to look at in a browser: {out}")


def write_comparison(folders: Sequence[Path], out: Path, where: Mapping[str, str] | None = None) -> None:
    """Writes the page of a comparison and, beside it, its table; prints the table. Raises: ValueError, OSError."""
    runs = find_runs(folders, where)
    pairs = compare_runs(runs)
    header = ["run", "over run", "points", "95 % interval", "right only here", "only there", "p (McNemar)", *COSTS]
    rows = []
    for pair in pairs:
        d = pair.difference
        interval = f"{100 * d.low:+.1f} to {100 * d.high:+.1f}"
        counts = [str(pair.only_a), str(pair.only_b), f"{pair.p_value:.3g}"]
        costs = [f"{pair.cost_ratios[name]:.2f}x" if name in pair.cost_ratios else "" for name in COSTS]
        rows.append([pair.a.label, pair.b.label, f"{100 * d.value:+.1f}", interval, *counts, *costs])
    table = format_markdown(header, rows)
    note = (
        f"{len(list_common_problems(runs))} problems are in all runs. Costs are ratios, over the problems of each pair."
    )
    write_atomically(out, compare_page(runs, pairs, out.parent.resolve()).encode())
    text = f"# {report_title(runs)}\n\n{table}\n\n{note}\n"
    write_atomically(out.with_suffix(".md"), text.encode(errors="backslashreplace"))
    print(f"{table}\n{note}\nproblem by problem, in a browser: {out}")


def print_curves(folders: Sequence[Path]) -> None:
    """Prints a table for each run. Raises: ValueError, OSError."""
    for run in find_runs(folders):
        print(f"{run.folder}: {len(run.results)} problems\n\n{format_markdown(*curve_rows(compute_curves(run)))}\n")


def write_trees(folder: Path, out: Path, export_format: ExportFormat) -> None:
    """Exports the trees of a run; prints where they are. Raises: ValueError, OSError."""
    files = export_trees(folder, out, export_format)
    is_one_file = export_format == "rollouts"
    print(f"rollouts in {files[0]}" if is_one_file else f"{len(files)} trees in {files[0].parent}")


def write_rows(folders: Sequence[Path], out: Path, table_format: str) -> None:
    """Exports the results of all runs; prints the names of the files. Raises: ValueError, OSError."""
    for file in export_rows(find_runs(folders), out, table_format):
        print(file)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; its first word may select a task other than the report."""
    task = arguments[0] if arguments and arguments[0] in ("trees", "compare", "curves", "export") else "report"
    parser = typed.make_parser("report", __doc__)
    if task == "trees":
        parser.add_argument("folders", nargs=1, type=Path, metavar="RUN_FOLDER", help="folder of a run")
        parser.add_argument("--format", choices=EXPORT_FORMATS, default="graphml", help="default: %(default)s")
        parser.add_argument("--out", type=Path, help="folder for the files; default: RUN_FOLDER/trees")
    else:
        parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, or folders above them")
    if task == "export":
        parser.add_argument("--format", choices=TABLE_FORMATS, default="csv", help="default: %(default)s")
        parser.add_argument("--out", type=Path, help="folder for the files; default: the first folder")
    elif task in ("report", "compare"):
        parser.add_argument("--out", type=Path, help=f"the page; default: {task}.html in the first folder")
        parser.add_argument(
            "--where",
            action="append",
            default=[],
            metavar="SETTING=VALUE",
            type=parse_filter,
            help="only runs with this setting or option, as search=ets; may be repeated",
        )
    given = arguments if task == "report" else arguments[1:]
    return parser.parse_args(given, argparse.Namespace(task=task))


def parse_filter(text: str) -> tuple[str, str]:
    """Returns name and value of a filter.

    >>> parse_filter("search.n=16")
    ('search.n', '16')

    Raises: ArgumentTypeError.
    """
    name, given, value = text.partition("=")
    if not name or not given:
        raise argparse.ArgumentTypeError(f"a filter is SETTING=VALUE, as search=ets, got {text}")
    return name, value


def run_program() -> int:
    args = parse_arguments(sys.argv[1:])
    first: Path = args.folders[0]
    try:
        if args.task == "trees":
            write_trees(first, args.out or first / "trees", args.format)
        elif args.task == "compare":
            write_comparison(args.folders, args.out or first / "compare.html", dict(args.where))
        elif args.task == "curves":
            print_curves(args.folders)
        elif args.task == "export":
            write_rows(args.folders, args.out or first, args.format)
        else:
            write_report(args.folders, args.out or first / "report.html", dict(args.where))
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0

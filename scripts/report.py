"""Gathers runs and sweeps into one page and one table, or exports the trees of a run.

python scripts/report.py multirun/DATE/TIME                    report.html and report.md in that folder
python scripts/report.py outputs multirun --out mine.html      all runs below both folders; mine.md beside the page
python scripts/report.py trees outputs/DATE/TIME --format dot --out drawings    one file per tree, for Graphviz
python scripts/report.py trees outputs/DATE/TIME --format rollouts    rollouts.jsonl, a line per tree, to train on

The page shows accuracy against tokens, forward passes, seconds and KV. Unfinished runs are shown with the results they
have; runs that cannot be read, or that have a broken row, are listed with the reason and are not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reason.runs.export_trees import EXPORT_FORMATS, export_trees
from reason.runs.gather import COSTS, FoundRun, find_runs
from reason.runs.json_files import write_atomically
from reason.runs.pages.report import front_of_runs, report_page
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


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Writes the page and, beside it, the table; prints the table. Raises: ValueError, OSError."""
    runs = find_runs(folders)
    table = runs_table(runs)
    meanings = [f"- {name}: {meaning}" for name, meaning in (COSTS | SHAPE_STATISTICS).items()]
    text = "\n\n".join([f"# {report_title(runs)}", table, "\n".join(meanings)])
    write_atomically(out, report_page(runs, report_title(runs), out.parent.resolve()).encode())
    write_atomically(out.with_suffix(".md"), f"{text}\n".encode(errors="backslashreplace"))
    print(table)
    print(f"to look at in a browser: {out}")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `trees` as first word selects the export."""
    export = arguments[:1] == ["trees"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if export:
        parser.add_argument("folders", nargs=1, type=Path, metavar="RUN_FOLDER", help="folder of a run")
        parser.add_argument("--format", choices=EXPORT_FORMATS, default="graphml", help="default: %(default)s")
        parser.add_argument("--out", type=Path, help="folder for the files; default: RUN_FOLDER/trees")
    else:
        parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, or folders above them")
        parser.add_argument("--out", type=Path, help="the page; default: report.html in the first folder")
    return parser.parse_args(arguments[1:] if export else arguments, argparse.Namespace(export=export))


def main() -> int:
    args = parse_arguments(sys.argv[1:])
    first: Path = args.folders[0]
    try:
        if args.export:
            files = export_trees(first, args.out or first / "trees", args.format)
            is_one_file = args.format == "rollouts"
            print(f"rollouts in {files[0]}" if is_one_file else f"{len(files)} trees in {files[0].parent}")
        else:
            write_report(args.folders, args.out or first / "report.html")
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Gather runs and sweeps into one page and one table: accuracy against tokens, forwards, seconds and KV.

python scripts/report.py multirun/DATE/TIME                    report.html and report.md in that folder
python scripts/report.py outputs multirun --out mine.html      everything there is; mine.md beside it

Runs that are under way are shown with what they have; those that cannot be read are listed with the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reason.bench.tables import markdown
from reason.runs.gather import COSTS, Found, find_runs
from reason.runs.pages.report import front, report_page


def table(runs: Sequence[Found]) -> str:
    """The runs as Markdown; those on a front are marked with its cost."""
    fronts = {cost: set(front(runs, cost)) for cost in COSTS}
    rows = []
    for i, run in enumerate(runs):
        marks = ", ".join(cost for cost, places in fronts.items() if i in places)
        state = run.state if run.broken is None else f"{run.state}: {run.broken}"
        numbers = [""] * (len(COSTS) + 3)
        if run.measured is not None:
            m = run.measured
            interval = "" if m.accuracy is None else f"{m.accuracy.low:.3f} to {m.accuracy.high:.3f}"
            accuracy = "" if m.accuracy is None else f"{m.accuracy.value:.3f}"
            numbers = [accuracy, interval, *(f"{m.costs[cost]:,.1f}" for cost in COSTS), str(m.problems)]
        rows.append([run.label, state, *numbers, marks])
    return markdown(["run", "state", "accuracy", "interval", *COSTS, "problems", "best for its"], rows)


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("folders", nargs="+", type=Path, help="folders of runs, or folders above them")
    top.add_argument("--out", type=Path, help="the page; default: report.html in the first folder")
    args = top.parse_args()
    out: Path = args.out or args.folders[0] / "report.html"
    try:
        runs = find_runs(args.folders)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(report_page(runs, title(runs), out.parent.resolve()), encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    text = table(runs)
    lines = [f"# {title(runs)}", text, *(f"- {name}: {meaning}" for name, meaning in COSTS.items())]
    out.with_suffix(".md").write_text("\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n", encoding="utf-8")
    print(text)
    print(f"to look at in a browser: {out}")
    return 0


def title(runs: Sequence[Found]) -> str:
    """What all runs have in common: tasks and models."""
    parts = [sorted({str(run.about[key]) for run in runs if key in run.about}) for key in ("task", "model")]
    return f"{len(runs)} runs: " + " with ".join(", ".join(part) for part in parts if part)


if __name__ == "__main__":
    sys.exit(main())

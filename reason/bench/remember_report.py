"""Formats what the draft table of an earlier run is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reason.bench.report import join_report
from reason.runs.tables import ResultTable

_HEADER = ("run", "seeds", "with the table", "without one", "gain (lowest to highest)")


def make_table(cases: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Returns the rows of `summarize_gains`."""
    rows = [
        [
            str(case["case"]),
            str(case["seeds"]),
            f"{case['remembering']:.2f}",
            f"{case['without']:.2f}",
            f"{case['remembering'] / case['without']:.2f} ({case['lowest']:.2f} to {case['highest']:.2f})",
        ]
        for case in cases
    ]
    return ResultTable("Tokens per forward pass of a branch", _HEADER, rows)


def format_report(result: Mapping[str, Any], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    parts = [
        f"The bundled model, {result['problems']} problems with {result['samples']} samples each at temperature 1, one "
        f"problem at a time, {result['nodes']} draft nodes in every round. All runs have their own seeds. Each of the "
        "others begins with the table of the first run of its seed; a run without a table has the same problems, seed "
        "and weights. *Similar*: other problems of the same kinds. *Other weights*: each is multiplied by 1 plus noise "
        f"of {result['noise']:g}, as after a step of training. Passes are counted, not timed.",
        make_table(result["cases"]).markdown_section(),
    ]
    title = "Drafts with the table of an earlier run"
    return join_report(title, command, parts, machine=result["machine"], figures=result)

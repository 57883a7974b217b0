"""Formats the comparison of whole runs with and without speculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reason.bench.report import join_report
from reason.runs.tables import ResultTable

_HEADER = (
    "workload",
    "pairs",
    "wall",
    "off / off",
    "CPU",
    "off / off",
    "estimated",
    "rounds",
    "of",
    "drafted per round",
    "differ",
)
_TITLE = "Seconds with speculation over seconds without: median (lowest to highest)"


def make_table(workloads: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Returns the ratios of `RunComparison.to_json`, each beside what the machine cannot tell apart."""
    rows = [
        [
            str(workload["workload"]),
            str(workload["pairs"]),
            *(_format_ratios(workload[clock]) for clock in ("wall", "wall_plain", "cpu", "cpu_plain", "estimated")),
            f"{workload['rounds']:,}",
            f"{workload['plain_rounds']:,}",
            f"{workload['drafted'] / max(1, workload['rounds']):.1f}",
            f"{workload['num_differing']} of {workload['problems']}",
        ]
        for workload in workloads
    ]
    return ResultTable(_TITLE, _HEADER, rows)


def format_report(result: Mapping[str, Any], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    settings = ", ".join(result["settings"])
    parts = [
        f"`speculation={result['speculation']}`{f' with {settings}' if settings else ''}. Each run with it stands "
        "between two without it and is compared with their mean, in wall seconds and in CPU seconds of the process; "
        "its start is not counted. *off / off* is the second of the two over the first: a ratio within its spread says "
        "nothing. *estimated* is the wall ratio that the controller expects of its run, from the plain rounds in it "
        "alone; what the controller takes itself, some tenths of a percent, is not in it. *rounds* of so many plain "
        "ones are those of the last pair. *differ*: problems of all pairs whose solution is another one than without "
        "speculation.",
        make_table(result["workloads"]).markdown_section(),
    ]
    title = "Whole runs with speculation beside the same runs without it"
    return join_report(title, command, parts, machine=result["machine"], figures=result)


def _format_ratios(ratios: Mapping[str, float]) -> str:
    return f"{ratios['median']:.2f} ({ratios['low']:.2f} to {ratios['high']:.2f})"

"""Formats the tables and the report of the engine benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from reason.bench.engine import EnginePoint
from reason.bench.report import join_report
from reason.runs.tables import ResultTable

Row = dict[str, Any]  # plain data: a whole result, or a point of it


def make_tables(points: Sequence[EnginePoint]) -> list[ResultTable]:
    """Returns all tables: speed, KV, parts of the time."""
    rows: list[Row] = [point.to_json() for point in points]
    return [_speed_table(rows), _kv_table(rows), _time_table(rows)]


def _speed_table(rows: Sequence[Row]) -> ResultTable:
    cells = [
        [
            *_workload_cells(row),
            f"{row['tokens_per_s']['ours']:,.0f}",
            *(_baseline_cell(row, name) for name in ("generate", "generate_batch")),
            f"{row['roofline_tokens_per_s']:,.0f}",
            f"{row['of_roofline']:.0%}",
        ]
        for row in rows
    ]
    title = "Tokens per second (and ours relative to it, median of paired runs)"
    header = ["prompt", "branches", "ours", "generate", "generate_batch", "roofline", "ours / roofline"]
    return ResultTable(title, header, cells)


def _kv_table(rows: Sequence[Row]) -> ResultTable:
    cells = [
        [
            *_workload_cells(row),
            f"{row['peak_resident_tokens']:,}",
            f"{row['peak_unshared_tokens']:,}",
            f"{row['kv_fraction']:.2f}",
        ]
        for row in rows
    ]
    return ResultTable("KV tokens held at the peak", ["prompt", "branches", "shared", "unshared", "fraction"], cells)


def _time_table(rows: Sequence[Row]) -> ResultTable:
    cells = [
        [
            *_workload_cells(row),
            *(f"{share:.0%}" for share in row["shares"].values()),
            f"{row['roofline_products_ms']:.2f}",
            f"{row['roofline_memory_ms']:.2f}",
        ]
        for row in rows
    ]
    header = ["prompt", "branches", *rows[0]["shares"], "products ms", "memory ms"]
    return ResultTable("Parts of our time, and the minimum time of a round", header, cells)


def _workload_cells(row: Row) -> list[str]:
    return [str(row["prompt"]), str(row["branches"])]


def _baseline_cell(row: Row, name: str) -> str:
    if name in row["failed"]:
        return "does not run"
    return f"{row['tokens_per_s'][name]:,.0f} ({row['speed_vs'][name]:.2f}x)"


def print_report(points: Sequence[EnginePoint], console: Console) -> None:
    """Prints the tables."""
    for table in make_tables(points):
        table.print_table(console)


def format_report(points: Sequence[EnginePoint], result: Row, command: str) -> str:
    """Returns the report in Markdown: command, machine, tables, failed baselines, and the JSON line."""
    cost = ", ".join(
        f"{middle:.2f}x ({low:.2f}-{high:.2f}) at {rows} rows"
        for rows, (low, middle, high) in result["modules_vs_fused"].items()
    )
    failed = [
        f"- {name} at {point.workload.branches}: {error}" for point in points for name, error in point.failed.items()
    ]
    parts = [
        f"{result['new']} new tokens per branch, {result['repeats']} repetitions, model {result['model'] or 'random'}.",
        f"transformers' modules against our fused stack, same rows, attention over one key: {cost}.",
        *(table.markdown_section() for table in make_tables(points)),
        "\n".join(failed),
    ]
    title = "The local engine against transformers"
    return join_report(title, command, parts, machine=result["machine"], figures=result)

"""The engine benchmark's tables, for a terminal and for a report file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from reason.bench import tables as figures
from reason.bench.engine import Point


def tables(points: Sequence[Point]) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, header, rows) of every table."""
    rows = [point.as_dict() for point in points]
    return [
        (
            "Tokens per second (and ours relative to it, median of paired runs)",
            ["prompt", "branches", "ours", "generate", "generate_batch", "at best here", "ours / best"],
            [
                [
                    str(row["prompt"]),
                    str(row["branches"]),
                    f"{row['tokens_per_s']['ours']:,.0f}",
                    *(_against(row, name) for name in ("generate", "generate_batch")),
                    f"{row['ceiling_tokens_per_s']:,.0f}",
                    f"{row['of_ceiling']:.0%}",
                ]
                for row in rows
            ],
        ),
        (
            "KV tokens held at the peak",
            ["prompt", "branches", "shared", "unshared", "fraction"],
            [
                [
                    str(row["prompt"]),
                    str(row["branches"]),
                    f"{row['peak_resident_tokens']:,}",
                    f"{row['peak_unshared_tokens']:,}",
                    f"{row['kv_fraction']:.2f}",
                ]
                for row in rows
            ],
        ),
        (
            "Where our time goes, and the least a round could take",
            ["prompt", "branches", *rows[0]["shares"], "products ms", "memory ms"],
            [
                [
                    str(row["prompt"]),
                    str(row["branches"]),
                    *(f"{share:.0%}" for share in row["shares"].values()),
                    f"{row['ceiling_products_ms']:.2f}",
                    f"{row['ceiling_memory_ms']:.2f}",
                ]
                for row in rows
            ],
        ),
    ]


def _against(row: dict[str, Any], name: str) -> str:
    if name in row["failed"]:
        return "does not run"
    return f"{row['tokens_per_s'][name]:,.0f} ({row['speed_vs'][name]:.2f}x)"


def show(points: Sequence[Point], console: Console) -> None:
    """Prints the tables."""
    for title, header, rows in tables(points):
        table = Table(*header, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def markdown(points: Sequence[Point], result: dict[str, Any], command: str) -> str:
    """A report: command, machine, tables, what did not run, and the JSON line."""
    lines = ["# The local engine against transformers", "", f"`{command}`", ""]
    lines += [", ".join(f"{key} {value}" for key, value in result["machine"].items()), ""]
    lines += [
        f"{result['new']} new tokens per branch, {result['repeats']} repetitions, model {result['model'] or 'random'}.",
        "",
    ]
    cost = ", ".join(
        f"{middle:.2f}x ({low:.2f}-{high:.2f}) at {rows} rows"
        for rows, (low, middle, high) in result["modules_vs_fused"].items()
    )
    lines += [f"transformers' modules against our fused stack, same rows, attention over one key: {cost}.", ""]
    for title, header, rows in tables(points):
        lines += [f"## {title}", "", figures.markdown(header, rows), ""]
    for point in points:
        lines += [f"- {name} at {point.work.branches}: {why}" for name, why in point.failed.items()]
    return "\n".join([*lines, "", "```json", json.dumps(result), "```", ""])

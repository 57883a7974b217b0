"""Formats the tables and the report of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from reason.bench.report import join_report
from reason.runs.tables import ResultTable

Row = dict[str, Any]  # plain data: a whole result, or a row of it

LIMITATIONS = (
    "A recorded text has no probabilities. Not measured: drafts drawn at random, and what a rejection rule gains from "
    "them; drafts drawn with the target's own noise; what is learned from rejected draft tokens and from the other "
    "likely tokens of the target, which is most of what Token Recycling learns."
)


def make_tables(result: Row) -> list[ResultTable]:
    """Returns one table per number of nodes, with a row per trajectory and a column per drafter."""
    return [_node_table(result["rows"], nodes) for nodes in dict.fromkeys(row["nodes"] for row in result["rows"])]


def _node_table(rows: Sequence[Row], nodes: int) -> ResultTable:
    here = [row for row in rows if row["nodes"] == nodes]
    lengths = zip(*(row["by_trajectory"] for row in here), strict=True)
    cells = [[str(number), *(f"{length:.2f}" for length in row)] for number, row in enumerate(lengths, 1)]
    cells.append(["all", *(f"{row['tokens_per_forward']:.2f}" for row in here)])
    title = f"Mean accepted length, bonus included, by trajectory of a problem, {nodes} draft nodes"
    return ResultTable(title, ["trajectory", *(row["drafter"] for row in here)], cells)


def print_report(result: Row, console: Console) -> None:
    """Prints the tables."""
    for table in make_tables(result):
        table.print_table(console)
    console.print(LIMITATIONS, highlight=False)


def format_report(result: Row, command: str, plot: str | None) -> str:
    """Returns the report in Markdown: command, recorded texts, plot, tables, and the JSON line."""
    parts = [
        f"{result['problems']} problems, {result['tokens']:,} tokens of {result['tokenizer']}. {LIMITATIONS}",
        f"![{plot}]({plot})" if plot else "",
        *(table.markdown_section() for table in make_tables(result)),
    ]
    return join_report("Drafters on recorded texts", command, parts, figures=result)

"""What a replay found, for a terminal and for a report file."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from reason.bench.tables import Figures

CANNOT_SHOW = (
    "A recorded text has no probabilities. Not measured: drafts drawn at random, and what a rejection rule gains from "
    "them; drafts drawn with the target's own noise; what is learned from guesses that were refused and from what else "
    "the target thought likely, which is most of what Token Recycling knows."
)


def tables(result: dict[str, Any]) -> list[Figures]:
    """One for each number of nodes: a row for each trajectory, a column for each drafter."""
    return [_table(result["rows"], nodes) for nodes in dict.fromkeys(row["nodes"] for row in result["rows"])]


def _table(rows: list[dict[str, Any]], nodes: int) -> Figures:
    here = [row for row in rows if row["nodes"] == nodes]
    lengths = zip(*(row["by_trajectory"] for row in here), strict=True)
    cells = [[str(number), *(f"{length:.2f}" for length in row)] for number, row in enumerate(lengths, 1)]
    cells.append(["all", *(f"{row['tokens_per_forward']:.2f}" for row in here)])
    title = f"Mean accepted length, bonus included, by trajectory of a problem, {nodes} draft nodes"
    return Figures(title, ["trajectory", *(row["drafter"] for row in here)], cells)


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the tables."""
    for figures in tables(result):
        figures.show(console)
    console.print(CANNOT_SHOW, highlight=False)


def markdown(result: dict[str, Any], command: str, plot: str | None) -> str:
    """A report: command, what was replayed, table, plot, and the JSON line."""
    lines = ["# Drafters on recorded texts", "", f"`{command}`", ""]
    lines += [f"{result['problems']} problems, {result['tokens']:,} tokens of {result['tokenizer']}. {CANNOT_SHOW}", ""]
    lines += [f"![{plot}]({plot})", ""] if plot else []
    for figures in tables(result):
        lines += figures.markdown()
    return "\n".join([*lines, "```json", json.dumps(result), "```", ""])

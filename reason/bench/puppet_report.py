"""Formats the tables and the report of the puppet benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from reason.bench.report import join_report
from reason.bench.speculation_report import describe_mismatches
from reason.runs.tables import ResultTable

Row = dict[str, Any]  # plain data: a whole result, or one of its measurements

SHARES = ("model", "drafting", "sampling")
LIMITS = (
    "The body has random weights: nothing here is about accuracy. The texts of the bundled writer are easier to draft "
    "than a real model's; recorded texts are a lower bound, because their noise is not known to the drafters. "
    "The brain's own time is part of every round."
)


def make_tables(result: Row) -> list[ResultTable]:
    """Returns the tables of a result: one per kind of measurement that it has."""
    tables = []
    if result["speed"]:
        rows = [[str(row["live"]), row["setup"], *_measured_cells(row)] for row in result["speed"]]
        tables.append(ResultTable("Drafters, by live branches", ["live", "drafter", *_HEADER], rows))
    if result["searches"]:
        rows = [
            [row["search"], row["setup"], *_measured_cells(row), f"{row['correct']} of {row['problems']}"]
            for row in result["searches"]
        ]
        tables.append(ResultTable("Searches", ["search", "drafter", *_HEADER, "correct"], rows))
    return tables


_HEADER = ("tokens/s", "over plain", "lowest", "highest", "tokens per forward", "rounds", *SHARES, "differ")


def _measured_cells(row: Row) -> list[str]:
    speeds: Sequence[float] = row["speeds"]
    shares: Mapping[str, float] = row["time_shares"]
    return [
        f"{row['tokens_per_s']:,.1f}",
        *(f"{number:.2f}x" for number in (row["speed"], min(speeds), max(speeds))),
        f"{row['tokens_per_forward']:.2f}",
        f"{row['rounds']:g}",
        *(f"{shares[name]:.0%}" for name in SHARES),
        # texts of a rule that draws other random numbers need not be those of plain decoding
        "-" if row["num_differing"] is None else f"{row['num_differing']} of {row['trajectories']}",
    ]


def print_report(result: Row, console: Console) -> None:
    """Prints the tables and what they do not show."""
    for table in make_tables(result):
        table.print_table(console)
    console.print(describe_puppet(result), highlight=False)


def describe_puppet(result: Row) -> str:
    """Returns what a reader of the tables must know."""
    body, settings = result["body"], result["settings"]
    source = result["recordings"] or "the bundled writer"
    mismatches = describe_mismatches({"acceptance": [], "speed": result["speed"]}) if result["speed"] else ""
    return (
        f"Body of the shape {body['shape']} ({body['parameters'] / 1e6:,.1f} million weights, {body['dtype']}, "
        f"{body['device']}); texts of {source}. {settings['laps']} runs of each; each comes after a plain run, and "
        f"`over plain` is the median of the ratios. {mismatches} {LIMITS}"
    )


def format_report(result: Row, command: str) -> str:
    """Returns the report in Markdown: command, machine, tables, and the JSON line with the configuration."""
    parts = [describe_puppet(result), *(table.markdown_section() for table in make_tables(result))]
    title = "Puppet: speculation at a real model's price"
    return join_report(title, command, parts, machine=result["machine"], figures=result)

"""Formats the tables and the report of the speculation benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from reason.bench.drafter_setups import ORACLE
from reason.bench.goals import OUR_SETUP, SPEED_SETUP, TEMPERATURE
from reason.bench.report import join_report
from reason.runs.tables import ResultTable

Row = dict[str, Any]  # plain data: a whole result, or its goals, points and speed runs

SPEED_TABLES: dict[str, Callable[[Row], str]] = {
    "Tokens per second relative to plain decoding": lambda run: f"{run['speed']:.2f}x",
    "Tokens per forward, bonus included, mean over families": lambda run: f"{run['tokens_per_forward']:.2f}",
    "Draft nodes per forward": lambda run: f"{run['nodes_per_forward']:.1f}",
    "Share of the time spent drafting and learning": lambda run: f"{run['drafting_share']:.0%}",
}


def make_tables(result: Row) -> list[ResultTable]:
    """Returns all tables of a result, the goals first."""
    points, speed_runs = result["acceptance"], result["speed"]
    tables = [_goal_table(result["goals"])] if result["goals"] else []
    if points:
        tables += [_token_table(points), _node_table(points), *_family_tables(points)]
    if speed_runs:
        tables += [
            _grid(f"{title}, by live branches", speed_runs, "live", cell) for title, cell in SPEED_TABLES.items()
        ]
        tables += list(_oracle_tables(speed_runs))
    return tables


def _goal_table(goals: Sequence[Row]) -> ResultTable:
    rows = [
        [
            goal["description"],
            f"{goal['required']:g}",
            "-" if goal["measured"] is None else f"{goal['measured']:.3f}",
            "-" if goal["error"] is None else f"{goal['error']:.3f}",
            goal["verdict"],
        ]
        for goal in goals
    ]
    header = ["ratio", "required", "measured", "+-", "verdict"]
    return ResultTable(f"Goals, at temperature {TEMPERATURE:g}", header, rows)


def _token_table(points: Sequence[Row]) -> ResultTable:
    ours = {(p["temperature"], p["nodes"]): p["tokens_per_forward"] for p in points if p["setup"] == OUR_SETUP}

    def cell(p: Row) -> str:
        mine, this = ours.get((p["temperature"], p["nodes"])), p["tokens_per_forward"]
        return f"{this:.2f}" if mine is None or p["setup"] == OUR_SETUP else f"{this:.2f} ({mine / this:.2f}x)"

    title = (
        "Tokens per forward at equal node budgets, bonus included, mean over families "
        f"(in brackets: {OUR_SETUP} / this)"
    )
    return _grid(title, points, "nodes", cell)


def _node_table(points: Sequence[Row]) -> ResultTable:
    return _grid("Draft nodes verified per forward", points, "nodes", lambda p: f"{p['nodes_per_forward']:.1f}")


def _family_tables(points: Sequence[Row]) -> Iterator[ResultTable]:
    families = list(points[0]["by_family"])
    for nodes in dict.fromkeys(p["nodes"] for p in points):
        rows = [
            [f"{p['temperature']:g}", p["setup"], *(f"{p['by_family'][family]:.2f}" for family in families)]
            for p in points
            if p["nodes"] == nodes
        ]
        yield ResultTable(f"Tokens per forward by family, {nodes} nodes", ["T", "drafter and rule", *families], rows)


def _grid(title: str, rows: Sequence[Row], over: str, cell: Callable[[Row], str]) -> ResultTable:
    """One row per setup and temperature, one column per value of `over`; a dash where nothing was measured."""
    columns = list(dict.fromkeys(row[over] for row in rows))
    cells = {(row["temperature"], row["setup"], row[over]): cell(row) for row in rows}
    table = [
        [f"{temperature:g}", name, *(cells.get((temperature, name, column), "-") for column in columns)]
        for temperature, name in dict.fromkeys((row["temperature"], row["setup"]) for row in rows)
    ]
    return ResultTable(title, ["T", "drafter and rule", *(f"{column} {over}" for column in columns)], table)


def _oracle_tables(speed_runs: Sequence[Row]) -> Iterator[ResultTable]:
    """The measured speed beside that of an oracle, at the same cost of a round."""
    runs = {(run["temperature"], run["live"], run["setup"]): run for run in speed_runs}
    rows = []
    for temperature, live in dict.fromkeys((run["temperature"], run["live"]) for run in speed_runs):
        ours, best = runs.get((temperature, live, SPEED_SETUP)), runs.get((temperature, live, ORACLE))
        if ours is not None and best is not None:
            speeds = ours["speed"], ours["speed"] / (1 - ours["drafting_share"]), best["speed"]
            cells = [f"{speed:.2f}x" for speed in speeds]
            rows.append([f"{temperature:g}", str(live), *cells, f"{speeds[0] / speeds[2]:.0%}"])
    if rows:
        header = ["T", "live", SPEED_SETUP, "if drafting took no time", "an oracle, 20 deep", "of the oracle"]
        yield ResultTable("How far from the limit: tokens per second relative to plain decoding", header, rows)


def describe_mismatches(result: Row) -> str:
    """Returns how many trajectories differ from plain decoding of those that must not."""
    exact = [row for part in ("acceptance", "speed") for row in result[part] if row["num_differing"] is not None]
    num_differing, total = (sum(row[key] for row in exact) for key in ("num_differing", "trajectories"))
    return f"Trajectories of coupled acceptance that differ from plain decoding: {num_differing} of {total}."


def print_report(result: Row, console: Console) -> None:
    """Prints the tables."""
    for table in make_tables(result):
        table.print_table(console)
    console.print(describe_mismatches(result))


def format_report(result: Row, command: str, plots: Sequence[str] = ()) -> str:
    """Returns the report in Markdown: command, machine, settings, plots, tables, and the JSON line."""
    parts = [
        describe_settings(result),
        describe_mismatches(result),
        *(f"![{plot}]({plot})" for plot in plots),
        *(table.markdown_section() for table in make_tables(result)),
    ]
    title = "Speculative decoding: drafters, rules, live branches"
    return join_report(title, command, parts, machine=result["machine"], figures=result)


def describe_settings(result: Row) -> str:
    """Returns what a reader of the tables must know."""
    settings, families = result["settings"], ", ".join(result["families"])
    return (
        f"Bundled models, held-out problems of {result['task']} ({families}), {settings['trajectories']} trajectories "
        f"each. Equal node budgets: {settings['problems']} problems of each family, "
        f"{settings['live_at_equal_nodes']} branches live. "
        f"Speed: {settings['speed_problems']} of each, setups interleaved, medians of {settings['repeats']} ratios "
        "to a plain run just before (one repetition at other temperatures than the first). Every run is a cold start: "
        "a fresh engine, drafter and controller, an empty prefix cache; problems come in order, so a drafter that "
        "learns across problems knows more at the later ones. Templates are learned from "
        f"{settings['tuning_problems']} problems of each family in the training split, with the drafter, rule and "
        "temperature they are used with. Rejection rules use other random numbers than plain decoding, so their texts "
        "differ; +- is the standard error, by jackknife over trajectories, of having sampled these texts of these "
        "problems. At temperature 0 all trajectories of a problem are one text."
    )

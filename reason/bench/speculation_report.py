"""The speculation benchmark's tables, for a terminal and for a report file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from reason.bench.drafter_setups import ORACLE
from reason.bench.goals import OURS, SPEED_OF, TEMPERATURE
from reason.bench.tables import Figures

Row = dict[str, Any]  # of a result: a bar, a point or a race


BY_LIVE: dict[str, Callable[[Row], str]] = {
    "Tokens per second relative to plain decoding": lambda race: f"{race['speed']:.2f}x",
    "Tokens per forward, bonus included, mean over families": lambda race: f"{race['tokens_per_forward']:.2f}",
    "Draft nodes per forward": lambda race: f"{race['nodes_per_forward']:.1f}",
    "Share of the time spent drafting and learning": lambda race: f"{race['drafting']:.0%}",
}


def tables(result: dict[str, Any]) -> list[Figures]:
    """All of a result's, the verdicts first."""
    points, races = result["acceptance"], result["speed"]
    found = [_verdicts(result["bars"])]
    if points:
        found += [_tokens(points), _nodes(points), *_families(points)]
    if races:
        found += [_by_live(f"{title}, by live branches", races, cell) for title, cell in BY_LIVE.items()]
        found += list(_limits(races))
    return found


def _verdicts(bars: Sequence[Row]) -> Figures:
    rows = [
        [
            bar["what"],
            f"{bar['wanted']:g}",
            "-" if bar["got"] is None else f"{bar['got']:.3f}",
            "-" if bar["error"] is None else f"{bar['error']:.3f}",
            bar["verdict"],
        ]
        for bar in bars
    ]
    return Figures(f"Bars, at temperature {TEMPERATURE:g}", ["ratio", "wanted", "got", "+-", "verdict"], rows)


def _tokens(points: Sequence[Row]) -> Figures:
    ours = {(p["temperature"], p["nodes"]): p["tokens_per_forward"] for p in points if p["contender"] == OURS}

    def cell(p: Row) -> str:
        mine, this = ours.get((p["temperature"], p["nodes"])), p["tokens_per_forward"]
        return f"{this:.2f}" if mine is None or p["contender"] == OURS else f"{this:.2f} ({mine / this:.2f}x)"

    title = f"Tokens per forward at equal node budgets, bonus included, mean over families (in brackets: {OURS} / this)"
    return _grid(title, points, "nodes", cell)


def _nodes(points: Sequence[Row]) -> Figures:
    return _grid("Draft nodes fed per forward", points, "nodes", lambda p: f"{p['nodes_per_forward']:.1f}")


def _families(points: Sequence[Row]) -> Iterator[Figures]:
    families = list(points[0]["by_family"])
    for nodes in dict.fromkeys(p["nodes"] for p in points):
        rows = [
            [f"{p['temperature']:g}", p["contender"], *(f"{p['by_family'][family]:.2f}" for family in families)]
            for p in points
            if p["nodes"] == nodes
        ]
        yield Figures(f"Tokens per forward by family, {nodes} nodes", ["T", "drafter and rule", *families], rows)


def _by_live(title: str, races: Sequence[Row], cell: Callable[[Row], str]) -> Figures:
    return _grid(title, races, "live", cell)


def _grid(title: str, rows: Sequence[Row], over: str, cell: Callable[[Row], str]) -> Figures:
    """One row for each contender and temperature, one column for each value of `over`."""
    columns = list(dict.fromkeys(row[over] for row in rows))
    cells = {(row["temperature"], row["contender"], row[over]): cell(row) for row in rows}
    table = [
        [f"{temperature:g}", name, *(cells[temperature, name, column] for column in columns)]
        for temperature, name in dict.fromkeys((row["temperature"], row["contender"]) for row in rows)
    ]
    return Figures(title, ["T", "drafter and rule", *(f"{column} {over}" for column in columns)], table)


def _limits(races: Sequence[Row]) -> Iterator[Figures]:
    """How far the measured speed is from what is possible at this cost of a round."""
    found = {(race["temperature"], race["live"], race["contender"]): race for race in races}
    rows = []
    for temperature, live in dict.fromkeys((race["temperature"], race["live"]) for race in races):
        ours, best = found.get((temperature, live, SPEED_OF)), found.get((temperature, live, ORACLE))
        if ours is not None and best is not None:
            speeds = ours["speed"], ours["speed"] / (1 - ours["drafting"]), best["speed"]
            cells = [f"{speed:.2f}x" for speed in speeds]
            rows.append([f"{temperature:g}", str(live), *cells, f"{speeds[0] / speeds[2]:.0%}"])
    if rows:
        header = ["T", "live", SPEED_OF, "if drafting took no time", "an oracle, 20 deep", "of the oracle"]
        yield Figures("How far from the limit: tokens per second relative to plain decoding", header, rows)


def mismatches(result: dict[str, Any]) -> str:
    """Whether what had to equal plain decoding did."""
    exact = [row for part in ("acceptance", "speed") for row in result[part] if row["differing"] is not None]
    differing, of_all = (sum(row[key] for row in exact) for key in ("differing", "trajectories"))
    return f"Trajectories of coupled acceptance that differ from plain decoding: {differing} of {of_all}."


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the tables."""
    for figures in tables(result):
        figures.show(console)
    console.print(mismatches(result))


def markdown(result: dict[str, Any], command: str, plots: Sequence[str] = ()) -> str:
    """A report: command, machine, what was run, tables, plots, and the JSON line."""
    lines = ["# Speculative decoding: drafters, rules, live branches", "", f"`{command}`", ""]
    lines += [", ".join(f"{key} {value}" for key, value in result["machine"].items()), ""]
    lines += [what_was_run(result), "", mismatches(result), ""]
    lines += [f"![{plot}]({plot})" for plot in plots] + [""] * bool(plots)
    for figures in tables(result):
        lines += figures.markdown()
    return "\n".join([*lines, "```json", json.dumps(result), "```", ""])


def what_was_run(result: dict[str, Any]) -> str:
    """What one must know to read the tables."""
    settings, families = result["settings"], ", ".join(result["families"])
    return (
        f"Bundled target, held-out problems of {families}, {settings['trajectories']} trajectories each. Equal node "
        f"budgets: {settings['problems']} problems of each family, {settings['live_at_equal_nodes']} branches live. "
        f"Speed: {settings['speed_problems']} of each, contenders interleaved, medians of {settings['repeats']} ratios "
        "to a plain run just before (one repetition at other temperatures than the first). Every run is a cold start: "
        "a fresh engine, drafter and controller, an empty prefix cache; problems come in order, so a drafter that "
        "learns across problems knows more at the later ones. Templates are learned from "
        f"{settings['tuning_problems']} problems of each family in the training split, with the drafter, rule and "
        "temperature they are used with. Rejection rules use other random numbers than plain decoding, so their texts "
        "differ; +- is the standard error, by jackknife over trajectories, of having sampled these texts of these "
        "problems. At temperature 0 all trajectories of a problem are one text."
    )

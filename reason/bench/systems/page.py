"""Writes docs/systems.md: every published system that fits here, what is faithful, and what it was measured to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reason.bench.systems.measure import EQUAL_NODES
from reason.bench.systems.rows import SLOTS, SystemRow

Figures = Mapping[str, Mapping[str, Any]]
"""By name of a system what `measure_row` gave, and its `recordings`."""

_TITLES = {
    "drafter": "Drafters",
    "tree": "Shapes of drafts",
    "acceptance": "Rules of acceptance",
    "controller": "Lengths of drafts",
    "router": "Two models, step by step",
    "search": "Searches",
    "scorer": "Scores",
    "memory": "Memory",
    "thinking": "Thoughts",
}


def format_page(rows: Sequence[SystemRow], figures: Figures, *sources: str) -> str:
    """Returns the page. `sources` say with which commands the figures were made, and on which machines."""
    parts = [
        "# Systems",
        "",
        "Published systems with a place in this project: how to run them, what is as published, and what we measured. "
        "This page is made by `reason bench systems` from the files in `reason/bench/systems/rows`. "
        "A system is *whole* if its mechanism is here as published, *part* if something is missing, and *absent* with "
        "the reason, below the tables.",
        "",
        *_explain_figures(sources),
    ]
    for slot in SLOTS:
        chosen = [row for row in rows if row.slot == slot]
        if chosen:
            parts += ["", f"## {_TITLES[slot]}", "", *_format_overview(chosen, figures)]
            for row in chosen:
                parts += ["", *_format_system(row)]
    return "\n".join(parts) + "\n"


def _explain_figures(sources: Sequence[str]) -> list[str]:
    return [
        "**Figures.** " + "\n\n".join(sources),
        "",
        "- *Lossless*: whether the distribution of texts is that of plain decoding; tests enumerate it. What is not, "
        "every result names. A search and a rule that ends thoughts have no mark: they choose which texts are written "
        "and where a thought ends, and what is written up to there is the model's own.",
        "- *Tokens per forward*: of a branch, in a forward pass of the target model; plain decoding has 1. Systems "
        f"without a controller of their own draft {EQUAL_NODES} tokens in every round. *writer*: solutions of 60 "
        "tokens; *thinker*: thoughts of 700; *recorded*: texts of a real model, replayed, of which a drafter cannot "
        "know the noise.",
        "- There is no draft model for the thinker, and none for the recorded texts. So systems with a draft model "
        "have figures on the writer only.",
        "- *Nodes*: draft tokens of a branch in such a pass, the mean of the same run.",
        "- *Speed*: tokens per second over those of plain runs beside it, median (lowest to highest), as the user "
        "types it, with the default controller where the system has none. *At equal nodes*: the same with "
        f"{EQUAL_NODES} nodes in every round. Runs are short: a tenth is noise.",
        "- *Differ*: samples that are not those of plain decoding. Rules other than `coupled` draw other random "
        "numbers, so their samples differ and their distribution does not.",
        "- *Right*: share of problems that are right, and that of the same run without the system.",
        "- Routers, evictions and rules that end thoughts are no part of speculation, so they have no tokens per "
        "forward: those would be the default drafter's, or count the passes of one model of two. They run with that "
        "drafter, which their speed includes; plain runs have none.",
        "- A cell is empty where there is no figure, and a column without any is left out.",
    ]


_ABOUT = ("system", "settings", "status", "lossless")
_MEASURED = ("tokens per forward", "nodes", "speed", "speed at equal nodes", "differ", "right")


def _format_overview(rows: Sequence[SystemRow], figures: Figures) -> list[str]:
    """Returns the table of the systems that run, without the columns that are empty."""
    table = []
    for row in rows:
        if row.status != "absent":
            lossless = {True: "yes", False: "**no**", None: ""}[row.lossless]
            about = dict(zip(_ABOUT, (row.name, f"`{row.settings}`", row.status, lossless), strict=True))
            table.append(about | _format_figures(row, figures.get(row.name, {})))
    if not table:
        return []
    header = [name for name in (*_ABOUT, *_MEASURED) if any(cells.get(name) for cells in table)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return lines + [f"| {' | '.join(cells.get(name, '') for name in header)} |" for cells in table]


def _format_figures(row: SystemRow, figures: Mapping[str, Any]) -> dict[str, str]:
    """Returns the cells of `_MEASURED` that there are."""
    if "search" in figures:
        search = figures["search"]
        beside = (
            f"{search['accuracy']:.2f} with {search['tokens']:,.0f} tokens, {search.get('baseline', 'best-of-16')} "
            f"{search['baseline_accuracy']:.2f} with {search['baseline_tokens']:,.0f} ({search['problems']} problems)"
        )
        return {"right": beside}
    columns: dict[str, list[str]] = {name: [] for name in _MEASURED}
    if figures.get("recordings") is not None:
        columns["tokens per forward"].append(f"recorded {figures['recordings']:.2f}")
    for name, values in figures.items():
        if name == "recordings":
            continue
        if row.chooses_drafts:
            columns["tokens per forward"].append(f"{name} {values['tokens_per_forward']:.2f}")
            if values.get("nodes") is not None:
                columns["nodes"].append(f"{name} {values['nodes']:.1f}")
            if values.get("equal_speed") is not None:
                columns["speed at equal nodes"].append(f"{name} {_format_spread(values['equal_speed'])}")
        columns["speed"].append(f"{name} {_format_spread(values['speed'])}")
        columns["differ"].append(f"{values['differing']} of {values['samples']}")
        columns["right"].append(f"{name} {values['accuracy']:.2f}, plain {values['plain_accuracy']:.2f}")
    return {name: ", ".join(cells) for name, cells in columns.items()}


def _format_spread(spread: Sequence[float]) -> str:
    middle, low, high = spread
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _format_system(row: SystemRow) -> list[str]:
    parts = [f"**{row.name}** ({row.paper})."]
    if row.faithful:
        parts.append(f"As published: {row.faithful}")
    if row.differs:
        parts.append(f"{'Absent' if row.status == 'absent' else 'Not as published'}: {row.differs}")
    if row.needs:
        parts.append(f"Needs: {row.needs}")
    return [" ".join(parts)]

"""Builds the index page of a run: what was run, its numbers, and a row per problem with a link to its tree."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from reason.runs.pages.embed import fill_template
from reason.runs.pages.records import GRADE_LABELS, grade_label_of
from reason.runs.papers.judgement import paper_lines
from reason.runs.result import ProblemResult
from reason.runs.summary import RunSummary, mean_shape, summarise_results
from reason.runs.summary_rows import summary_rows

MAX_QUESTION_CHARS = 240
NAMES = ("task", "model", "search")
PARTS = ("model", "scorer", "engine", "speculation", "router", "early_exit", "eviction", "effort")


def index_page(
    results: Sequence[ProblemResult],
    links: Mapping[str, str],
    about: Mapping[str, object],
    summary: RunSummary | None = None,
    num_problems: int | None = None,
) -> str:
    """Returns a self-contained HTML page with a row per result, in their order.

    links    relative addresses of pages by the problem's id; a problem that is not in it gets no link
    about    metadata of the run, and when it was `started` by which `command`, as far as they are known
    summary  the run's summary; without it, the numbers are those of the rows
    num_problems  of a run under way: the page says so, and loads itself again; None: the run is over
    """
    state = [] if num_problems is None else [("state", f"running, {len(results)} of {num_problems} problems are done")]
    data = {
        "title": ", ".join(str(about[name]) for name in NAMES if name in about) or "results",
        "facts": [*state, *_facts(about, summary), *_tree_facts(results)],
        "isRunning": num_problems is not None,
        "settings": list(_known_mapping(about, "settings").items()),
        "totals": _totals(results, summary),
        "labels": {kind: label._asdict() for kind, label in GRADE_LABELS.items()},
        "rows": [_row_data(result, links) for result in results],
    }
    return fill_template("index.html", data)


def _facts(about: Mapping[str, object], summary: RunSummary | None) -> Iterator[tuple[str, str]]:
    """Yields (name, text) pairs about the run; unknown ones are left out."""
    settings, versions = _known_mapping(about, "settings"), _known_mapping(about, "versions")
    if summary is not None and summary.get("stopped", "done") != "done":
        yield "state", str(summary["stopped"])
    for name in ("started", "command"):
        if name in about:
            yield name, str(about[name])
    if "search.n" in settings:
        yield "n", str(settings["search.n"])
    for name in ("seed", *PARTS, "stands_in_for", "lossy"):
        if about.get(name) not in (None, "off", "none"):
            path = about.get(f"{name}_path")
            yield name.replace("_", " "), f"{about[name]}{f' ({path})' if path else ''}"
    if summary is not None and "paper" in summary:
        yield from paper_lines(summary["paper"])
    if versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())


def _tree_facts(results: Sequence[ProblemResult]) -> Iterator[tuple[str, str]]:
    """Yields the mean shape of the trees, where there are any."""
    shape = mean_shape(results)
    if shape:
        form = f"{shape['steps']:.1f} steps, depth {shape['depth']:.1f}, branching {shape['branching']:.1f}"
        yield "mean of a tree", f"{form}, {shape['shared']:.0%} of the tokens of all paths shared"


def _known_mapping(about: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = about.get(name)
    return value if isinstance(value, Mapping) else {}


def _row_data(result: ProblemResult, links: Mapping[str, str]) -> dict[str, object]:
    return {
        "id": result.id,
        "question": textwrap.shorten(result.question, MAX_QUESTION_CHARS, placeholder=" …"),
        "grade": grade_label_of(result).kind,
        "answer": result.answer,
        "trusted": result.is_trusted,
        "gold": result.gold,
        "samples": result.metadata.get("allocated"),
        "tokens": result.usage.tokens,
        "seconds": result.usage.seconds,
        "nodes": result.nodes,
        "depth": None if result.shape is None else result.shape.max_depth,
        "error": result.error,
        "href": links.get(result.id),
    }


def _totals(results: Sequence[ProblemResult], summary: RunSummary | None) -> list[tuple[str, str, str]]:
    """Returns (name, value, note), as the terminal's summary has them."""
    if summary is None:
        known = summarise_results(results)
        summed = {"engine_totals": {}, "total": len(results), "resumed": 0, "seconds": known["usage"]["seconds"]}
        rows = summary_rows(known | summed)
        rows[-1] = ("seconds", rows[-1][1], "summed over problems")
        return rows
    return summary_rows(summary)

"""Builds the index page of a run: one table row per problem, with a link to the page of its tree."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from reason.runs.metrics import mean_metric
from reason.runs.pages.embed import fill_template
from reason.runs.pages.explanation import format_number
from reason.runs.pages.records import GRADE_LABELS, grade_label_of
from reason.runs.result import ProblemResult
from reason.runs.summary import mean_shape

MAX_QUESTION_CHARS = 240


def index_page(results: Sequence[ProblemResult], links: Mapping[str, str], title: str) -> str:
    """Returns a self-contained HTML page with a row per result, in their order.

    `links` maps a problem's id to the relative address of its page; a problem that is not in it gets no link.
    """
    data = {
        "title": title,
        "totals": _totals(results),
        "labels": {kind: label._asdict() for kind, label in GRADE_LABELS.items()},
        "rows": [_row_data(result, links) for result in results],
    }
    return fill_template("index.html", data)


def _row_data(result: ProblemResult, links: Mapping[str, str]) -> dict[str, object]:
    return {
        "id": result.id,
        "question": textwrap.shorten(result.question, MAX_QUESTION_CHARS, placeholder=" …"),
        "grade": grade_label_of(result).kind,
        "answer": result.answer,
        "gold": result.gold,
        "tokens": result.usage.tokens,
        "seconds": result.usage.seconds,
        "nodes": result.nodes,
        "depth": None if result.shape is None else result.shape.max_depth,
        "error": result.error,
        "href": links.get(result.id),
    }


def _totals(results: Sequence[ProblemResult]) -> list[tuple[str, str]]:
    """Returns (name, number) pairs for the top of the page; unknown ones are left out."""
    tokens, seconds = sum(result.usage.tokens for result in results), sum(result.usage.seconds for result in results)
    totals = [("problems", format_number(len(results)))]
    correct = [result.is_correct for result in results if result.has_gold]
    if correct:
        accuracy = mean_metric(np.array(correct, dtype=np.float64), "accuracy", 1)
        error = "" if accuracy.stderr is None else f" ± {accuracy.stderr:.3f}"
        totals += [("accuracy", f"{accuracy.value:.3f}{error}"), ("correct", f"{sum(correct):,} of {len(correct):,}")]
    if tokens:
        per_problem = format_number(round(tokens / len(results)))
        totals += [("tokens", format_number(tokens)), ("tokens per problem", per_problem)]
    if seconds:
        totals.append(("seconds, summed", f"{seconds:,.1f}"))
    shape = mean_shape(results)
    if shape:
        totals += [(f"{name} of a tree, mean", f"{shape[name]:.1f}") for name in ("steps", "depth", "branching")]
        totals.append(("tokens shared by paths", f"{shape['shared']:.0%}"))
    lossy = next((result.lossy for result in results if result.lossy is not None), None)
    return totals if lossy is None else [*totals, ("lossy", lossy)]

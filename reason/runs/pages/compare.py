"""Builds the page that compares runs problem by problem."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from reason.runs.compare import PairedRuns, list_common_problems
from reason.runs.gather import FoundRun
from reason.runs.pages.embed import fill_template, link_page
from reason.runs.pages.index import MAX_QUESTION_CHARS
from reason.runs.pages.records import GRADE_LABELS, grade_label_of
from reason.runs.result import ProblemResult


def compare_page(runs: Sequence[FoundRun], pairs: Sequence[PairedRuns], home: Path) -> str:
    """Returns a self-contained HTML page: a row per problem that all runs have, with the answer of each run.

    `home` is the folder that the page will be in; links to the pages of the runs are relative to it.
    """
    data = {
        "title": f"{len(runs)} runs compared",
        "runs": [{"label": run.label, "href": None if run.page is None else link_page(run.page, home)} for run in runs],
        "pairs": [_pair_data(pair, runs) for pair in pairs],
        "labels": {kind: label._asdict() for kind, label in GRADE_LABELS.items()},
        "rows": [_row_data(rows) for rows in list_common_problems(runs)],
    }
    return fill_template("compare.html", data)


def _pair_data(pair: PairedRuns, runs: Sequence[FoundRun]) -> dict[str, object]:
    return {
        "a": runs.index(pair.a),
        "b": runs.index(pair.b),
        "difference": pair.difference.value,
        "low": pair.difference.low,
        "high": pair.difference.high,
        "onlyA": pair.only_a,
        "onlyB": pair.only_b,
        "pValue": pair.p_value,
        "costs": dict(pair.cost_ratios),
    }


def _row_data(results: Sequence[ProblemResult]) -> dict[str, object]:
    first = results[0]
    return {
        "id": first.id,
        "question": textwrap.shorten(first.question, MAX_QUESTION_CHARS, placeholder=" …"),
        "gold": first.gold,
        "answers": [result.answer for result in results],
        "grades": [grade_label_of(result).kind for result in results],
        "tokens": [result.usage.tokens for result in results],
    }

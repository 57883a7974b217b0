"""A run as one table: every problem, what became of it, what it took, and where its page is."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reason.runs.metrics import mean_of
from reason.runs.pages.embed import fill
from reason.runs.pages.explanation import short
from reason.runs.pages.grade_labels import VERDICTS, verdict_of

SHORTENED = 240


def index_page(rows: list[dict[str, Any]], links: dict[str, str], title: str) -> str:
    """An HTML page, whole in itself, with a row for each result row (`reason.runs.result`), in their order.

    `links` maps a problem's id to the relative address of its page; a problem that is not in it gets no link. Rows need
    an `id` only.
    """
    data = {
        "title": title,
        "totals": _totals(rows),
        "verdicts": {kind: verdict._asdict() for kind, verdict in VERDICTS.items()},
        "rows": [_row(row, links) for row in rows],
    }
    return fill("index.html", data)


def _row(row: Mapping[str, Any], links: Mapping[str, str]) -> dict[str, Any]:
    spent = row.get("spent") or {}
    return {
        "id": str(row.get("id", "")),
        "question": textwrap.shorten(row.get("question") or "", SHORTENED, placeholder=" …"),
        "grade": verdict_of(row).kind,
        "answer": row.get("answer"),
        "gold": row.get("gold"),
        "tokens": spent.get("tokens"),
        "seconds": spent.get("seconds"),
        "nodes": row.get("nodes"),
        "error": row.get("error"),
        "href": links.get(str(row.get("id", ""))),
    }


def _totals(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, number) pairs for the top of the page; what cannot be known is left out."""
    spents = [row.get("spent") or {} for row in rows]
    tokens, seconds = (sum(spent.get(name) or 0 for spent in spents) for name in ("tokens", "seconds"))
    totals = [("problems", short(len(rows)))]
    right = [row.get("grade") == "right" for row in rows if row.get("gold") is not None]
    if right:
        accuracy = mean_of(np.array(right, dtype=np.float64), "accuracy", 1)
        error = "" if accuracy.stderr is None else f" ± {accuracy.stderr:.3f}"
        totals += [("accuracy", f"{accuracy.value:.3f}{error}"), ("correct", f"{sum(right):,} of {len(right):,}")]
    if tokens:
        totals += [("tokens", short(tokens)), ("tokens per problem", short(round(tokens / len(rows))))]
    if seconds:
        totals.append(("seconds, summed", f"{seconds:,.1f}"))
    return totals

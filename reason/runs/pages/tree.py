"""One search as one page: what was explored, what was cut and why, and how the answer won."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reason.runs.pages.embed import fill
from reason.runs.pages.explanation import right_answers, rule_of, short, why
from reason.runs.pages.grade_labels import verdict_of

Data = Mapping[str, Any]


def tree_page(record: dict[str, Any], row: dict[str, Any], *, index: str | None = None) -> str:
    """An HTML page, whole in itself, of a tree record (`reason.runs.run.tree_record`) and its result row.

    Only a record's `nodes` are needed; `row` may be empty. `index` is the relative address of the page that lists the
    run's problems. What the drawing does not need is left out: of token ids and
    their log-probabilities their number and their mean stay.
    """
    return fill("tree.html", tree_data(record, row) | {"index": index})


def tree_data(record: Data, row: Data) -> dict[str, Any]:
    """What `tree.html` shows, as plain data."""
    candidates = record.get("candidates") or []
    return {
        "id": str(record.get("id", row.get("id", ""))),
        "question": record.get("question") or row.get("question") or "",
        "why": why(record, row),
        "verdict": verdict_of(row)._asdict(),
        "best": record.get("best"),
        "strategy": str((record.get("strategy") or {}).get("_target_", "")).rpartition(".")[2],
        "settings": list(_settings(record.get("strategy") or {})),
        "facts": list(_facts(record, row)),
        "rule": rule_of(record),
        "votes": _votes(record, row),
        "candidates": [[c["node"], c.get("answer"), c.get("score")] for c in candidates],
        "nodes": _columns(record["nodes"]),
        "selections": [_selection(selection) for selection in record.get("selections") or []],
    }


def _columns(nodes: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The nodes as columns: their names are said once."""
    return {
        "parent": [node["parent"] for node in nodes],
        "text": [node.get("text", "") for node in nodes],
        "tokens": [len(node.get("tokens") or ()) for node in nodes],
        "logprob": [_mean(node.get("logprobs") or ()) for node in nodes],
        "score": [_rounded(node.get("score")) for node in nodes],
        "finish": [node.get("finish") for node in nodes],
        "author": [node.get("author") for node in nodes],
        "route": [_rounded(node.get("route")) for node in nodes],
    }


def _selection(selection: Data) -> dict[str, Any]:
    named = ("size", "nodes", "widths", "kv_tokens", "kept_tokens", "note")
    reasons = {str(node): reason for node, reason in (selection.get("reasons") or {}).items()}
    return {name: selection.get(name) for name in named} | {"reasons": reasons}


def _votes(record: Data, row: Data) -> list[dict[str, Any]]:
    """Each answer's votes, the most first; `right` is None where nothing is known of the gold answer."""
    right = right_answers(record, row)
    answers = [candidate.get("answer") for candidate in record.get("candidates") or []]
    return [
        {
            "answer": answer,
            "votes": _rounded(votes),
            "solutions": answers.count(answer),
            "right": answer in right if right else None,
            "won": answer == record.get("answer"),
        }
        for answer, votes in sorted((record.get("votes") or {}).items(), key=lambda item: -item[1])
    ]


def _facts(record: Data, row: Data) -> Iterator[tuple[str, str]]:
    """What it took, as (name, number) pairs; what is not known is left out."""
    spent, nodes = row.get("spent") or {}, record["nodes"]
    yield "tokens", short(spent.get("tokens") or sum(len(node.get("tokens") or ()) for node in nodes))
    for name, key in (("calls", "calls"), ("paths scored", "scorer_calls")):
        if spent.get(key):
            yield name, short(spent[key])
    if spent.get("seconds"):
        yield "seconds", f"{spent['seconds']:,.1f}"
    yield "steps", short(len(nodes))
    peak = max((selection.get("kv_tokens") or 0 for selection in record.get("selections") or []), default=0)
    if peak:
        yield "KV tokens at most", short(peak)


def _settings(settings: Data, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Knobs as (name, value), those of nested settings with a dotted name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield prefix + name, str(value)


def _mean(numbers: Sequence[float]) -> float | None:
    return _rounded(math.fsum(numbers) / len(numbers)) if numbers else None


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.5g}")

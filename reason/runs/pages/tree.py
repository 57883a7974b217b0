"""Builds the page of one search: the tree, what was pruned and why, and how the answer won."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decoding.core import Usage
from reason.runs.pages.embed import fill_template
from reason.runs.pages.explanation import (
    correct_answers,
    describe_choice,
    explain_answer,
    format_number,
    voting_rule_of,
)
from reason.runs.pages.formulas import MATHML, can_convert, convert_formulas
from reason.runs.pages.records import TreeRecord, grade_label_of
from reason.runs.result import ProblemResult


def tree_page(record: TreeRecord, result: ProblemResult | None, *, index: str | None = None) -> str:
    """Returns a self-contained HTML page of a tree record (`reason.runs.run.tree_record`) and its result.

    Only `nodes` of a record are needed. `index` is the relative address of the run's index page. Token ids and
    log-probabilities are left out: the page shows their number and their mean.
    """
    return fill_template("tree.html", tree_page_data(record, result) | {"index": index})


def tree_page_data(record: TreeRecord, result: ProblemResult | None) -> dict[str, object]:
    """Returns the plain data that `tree.html` shows."""
    candidates, strategy = record.get("candidates") or [], record.get("strategy") or {}
    return {
        "id": str(record.get("id", "" if result is None else result.id)),
        "question": record.get("question") or ("" if result is None else result.question),
        "why": explain_answer(record, result),
        "grade": grade_label_of(result)._asdict(),
        "best": record.get("best"),
        "choice": describe_choice(record),
        "strategy": str(strategy.get("_target_", "")).rpartition(".")[2],
        "settings": list(_flat_settings(strategy)),
        "facts": list(_facts(record, result)),
        "rule": voting_rule_of(record),
        "votes": _vote_rows(record, result),
        "math": convert_formulas(_texts(record, result), [*(record.get("votes") or {}), record.get("answer") or ""]),
        "mathNamespace": MATHML,
        "mathNote": "" if can_convert() else "Formulas are shown as they were written: latex2mathml is not installed.",
        "candidates": [[c["node"], c.get("answer"), c.get("score")] for c in candidates],
        "nodes": _node_columns(record["nodes"]) | _thought_column(record) | _context_columns(record),
        "contexts": [
            {name: context.get(name) for name in ("purpose", "text", "sources")}
            for context in record.get("contexts") or []
        ],
        "selections": [_selection_data(selection) for selection in record.get("selections") or []],
    }


def _texts(record: TreeRecord, result: ProblemResult | None) -> Iterator[str]:
    """Yields the texts with formulas, those that are seen first before the others: formulas have a limit."""
    nodes = record["nodes"]
    yield record.get("question") or ("" if result is None else result.question)
    best = record.get("best")
    at = -1 if best is None else best
    while 0 <= at < len(nodes):
        yield str(nodes[at].get("text", ""))
        at = nodes[at]["parent"]
    for node in nodes:
        yield str(node.get("text", ""))


def _node_columns(nodes: Sequence[Mapping[str, Any]]) -> dict[str, list[object]]:
    """Returns the nodes as columns, so that each key is written once; reads the keys of the last release too."""
    return {
        "parent": [node["parent"] for node in nodes],
        "text": [node.get("text", "") for node in nodes],
        "tokens": [len(node.get("tokens") or ()) for node in nodes],
        "logprob": [_mean(node.get("logprobs") or ()) for node in nodes],
        "score": [_round5(node.get("score")) for node in nodes],
        "finish": [node.get("finish") for node in nodes],
        "author": [node.get("model", node.get("author")) for node in nodes],
        "route": [_round5(node.get("routing_score", node.get("route"))) for node in nodes],
    }


def _thought_column(record: TreeRecord) -> dict[str, list[object]]:
    """Returns the lengths of thoughts in the steps, in JavaScript's units of text; nothing where there are none."""
    thoughts = record.get("thoughts") or {}
    if not thoughts:
        return {}
    texts = [str(node.get("text", ""))[: thoughts.get(str(i), 0)] for i, node in enumerate(record["nodes"])]
    return {"thought": [len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in texts]}


def _context_columns(record: TreeRecord) -> dict[str, list[object]]:
    """Returns the parents of a tree with contexts, and the contexts that nodes begin behind, by number.

    The page draws what is behind a context to the right of the first step that the context was made from.
    """
    contexts = record.get("contexts") or []
    if not contexts:
        return {}
    parents = [node["parent"] for node in record["nodes"]]
    begun = [None if parent > -2 else -2 - parent for parent in parents]
    first_sources = [next(iter(context.get("sources") or ()), -1) for context in contexts]
    return {
        "parent": [
            parent if number is None else first_sources[number] for parent, number in zip(parents, begun, strict=True)
        ],
        "context": list(begun),
    }


def _selection_data(selection: Mapping[str, Any]) -> dict[str, object]:
    names = ("size", "nodes", "widths", "kv_tokens", "kept_tokens", "note")
    reasons = {str(node): reason for node, reason in (selection.get("reasons") or {}).items()}
    return {name: selection.get(name) for name in names} | {"reasons": reasons}


def _vote_rows(record: TreeRecord, result: ProblemResult | None) -> list[dict[str, object]]:
    """Returns each answer's votes, most first, then answers without votes: together they count every solution.

    `right` is None where the correct answer is unknown.
    """
    correct, votes = correct_answers(record, result), dict(record.get("votes") or {})
    solutions = Counter(candidate.get("answer") for candidate in record.get("candidates") or [])
    silent = sorted((answer for answer in solutions if answer not in votes), key=lambda answer: answer is None)
    rows = sorted(votes.items(), key=lambda item: -item[1]) + [(answer, None) for answer in silent]
    return [
        {
            "answer": answer,
            "votes": _round5(number),
            "solutions": solutions[answer],
            "right": answer in correct if correct and answer is not None else None,
            "won": answer is not None and answer == record.get("answer"),
        }
        for answer, number in rows
    ]


def _facts(record: TreeRecord, result: ProblemResult | None) -> Iterator[tuple[str, str]]:
    """Yields (name, number) pairs of the compute used; unknown ones are left out."""
    usage, nodes = Usage() if result is None else result.usage, record["nodes"]
    yield "tokens", format_number(usage.tokens or sum(len(node.get("tokens") or ()) for node in nodes))
    if usage.calls:
        yield "calls", format_number(usage.calls)
    if usage.scorer_calls:
        yield "paths scored", format_number(usage.scorer_calls)
    if usage.seconds:
        yield "seconds", f"{usage.seconds:,.1f}"
    yield "steps", format_number(len(nodes))
    if result is not None and result.kv.peak_tokens:
        yield "peak KV tokens", format_number(result.kv.peak_tokens)
    if result is not None and result.shape is not None:
        yield "depth", format_number(result.shape.max_depth)
        yield "mean branching", f"{result.shape.mean_branching:.2f}"
        yield "tokens shared by paths", f"{result.shape.shared_token_share:.0%}"
    if result is not None and result.lossy is not None:
        yield "lossy", result.lossy


def _flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields settings as (name, value); those of nested settings have a dotted name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat_settings(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield prefix + name, str(value)


def _mean(numbers: Sequence[float]) -> float | None:
    return _round5(math.fsum(numbers) / len(numbers)) if numbers else None


def _round5(number: float | None) -> float | None:
    """Rounds to five significant digits, which keeps the page small."""
    return None if number is None else float(f"{number:.5g}")

"""One problem's outcome as one row of plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from decoding.core import Spent
from reason.grading import Grade
from reason.problem import Problem, Solution
from reason.runs.metrics import Sample
from reason.runs.result_file import Row
from search.kv import KVUse, kv_use
from search.strategy import Candidate

Grading = Callable[[Problem, str], Grade]  # of a whole text: some problems are graded by their steps

CHANGING = (
    *("seconds", "cached_tokens", "scored_tokens", "forwards", "draft_forwards"),
    *("drafted", "accepted", "round_seconds", "plain_seconds"),
)
"""Parts of `spent` that depend on the machine's mood: on time, what else was cached, how much was worth guessing."""


def solution_row(solution: Solution, grade: Grading) -> Row:
    """The row of a solved problem; numbers are rounded to six places."""
    problem, result = solution.problem, solution.result
    graded = grade(problem, solution.text)
    return {
        "id": problem.id,
        "question": problem.question,
        "gold": problem.answer,
        "answer": solution.answer,
        "grade": graded.value,
        **({"reason": graded.reason} if graded.reason and problem.answer is not None else {}),
        "score": _rounded(solution.score),
        "text": solution.text,
        "votes": {answer: _rounded(votes) for answer, votes in result.votes.items()},
        "samples": [_sample(solution, candidate, grade) for candidate in result.candidates],
        "stopped": result.stopped,
        "nodes": len(result.tree),
        "kv": {name: _rounded(value) for name, value in asdict(kv_use(result)).items()},
        "spent": _spent(result.spent),
        "accepted_length": _rounded(result.spent.accepted_length),
        "speedup": _rounded(result.spent.speedup),
        "error": None,
    }


def error_row(problem: Problem, error: Exception) -> Row:
    """The row of a problem that failed: the same columns, and why."""
    return {
        "id": problem.id,
        "question": problem.question,
        "gold": problem.answer,
        "answer": None,
        "grade": "no_answer",
        "score": None,
        "text": "",
        "votes": {},
        "samples": [],
        "stopped": "error",
        "nodes": 0,
        "kv": asdict(KVUse()),
        "spent": _spent(Spent()),
        "accepted_length": None,
        "speedup": None,
        "error": f"{type(error).__name__}: {error}",
    }


def in_short(row: Row) -> dict[str, Any]:
    """What a log says of a row: which problem, what became of it, what it took."""
    told = ("gold", "answer", "grade", "score", "stopped", "nodes", "accepted_length", "speedup", "error")
    return {"problem": row["id"], **{key: row[key] for key in told}, "samples": len(row["samples"]), **row["spent"]}


def samples_of(row: Row) -> list[Sample]:
    """A row's samples as the metrics take them."""
    gold = row["gold"] is not None
    return [Sample(s["answer"], s["grade"] == "right" if gold else None, s["score"]) for s in row["samples"]]


def spent_of(row: Row) -> Spent:
    """What the problem of this row took."""
    return Spent(**row["spent"])


def _sample(solution: Solution, candidate: Candidate, grade: Grading) -> dict[str, Any]:
    tree = solution.tree
    path = tree.path(candidate.node)
    return {
        "node": candidate.node,
        "answer": candidate.answer,
        "grade": grade(solution.problem, tree.text(candidate.node)).value,
        "score": _rounded(candidate.score),
        "step_scores": [_rounded(tree.nodes[i].score) for i in path],
        "tokens": sum(len(tree.nodes[i].step.tokens) for i in path),
        "finish": tree.nodes[candidate.node].finish,
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return asdict(spent) | {"seconds": _rounded(spent.seconds)}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 6)

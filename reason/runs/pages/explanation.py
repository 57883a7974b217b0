"""Why an answer won, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reason.runs.pages.grade_labels import verdict_of
from search.voting import RULES, tally

Data = Mapping[str, Any]


def why(record: Data, row: Data) -> str:
    """The sentence for a tree record and its result row; keys that are missing shorten it.

    >>> candidates = [{"node": 0, "answer": "4", "score": 0.9}, {"node": 1, "answer": "5", "score": 0.5}]
    >>> record = {"best": 0, "answer": "4", "votes": {"4": 0.9, "5": 0.5}, "candidates": candidates}
    >>> why(record | {"strategy": {"select": "weighted"}}, {"grade": "right", "gold": "4"})
    '4 won: 1 of 2 solutions says so, together 0.90 of 1.40 votes (weighted by score); it is correct (gold answer 4).'
    """
    if row.get("error"):
        return f"The problem failed: {row['error']}"
    clauses = [_won(record), _correct(record, row), "the budget ended the search"]
    kept = clauses if record.get("stopped") == "budget" else clauses[:2]
    return "; ".join(clause for clause in kept if clause) + "."


def rule_of(record: Data) -> str | None:
    """The rule under which the votes of a record come out as they did: the declared one first; None if none does."""
    votes, candidates = record.get("votes") or {}, record.get("candidates") or []
    answers, scores = [c.get("answer") for c in candidates], [c.get("score") for c in candidates]
    strategy = record.get("strategy") or {}
    declared = "best" if str(strategy.get("_target_")).endswith("BestOfN") else strategy.get("select")
    for rule in dict.fromkeys([declared, "majority", *RULES]):
        counted = tally(answers, scores, rule) if rule in RULES else {}
        if votes and counted.keys() == votes.keys() and all(_close(counted[a], votes[a]) for a in votes):
            # without scores every rule counts heads
            return "majority" if all(score is None for score in scores) else str(rule)
    return None


def right_answers(record: Data, row: Data) -> set[str]:
    """The answers that are graded right; without graded samples, the one spelled like the gold answer."""
    graded = {sample.get("answer") for sample in row.get("samples") or [] if sample.get("grade") == "right"}
    chosen = {record.get("answer")} if row.get("grade") == "right" else set()
    return {answer for answer in graded | chosen or {row.get("gold")} if answer is not None}


def short(number: float) -> str:
    """A number in as many digits as a person reads.

    >>> short(5.3102), short(0.00043), short(12), short(1234.5)
    ('5.31', '0.00043', '12', '1,234.50')
    """
    if isinstance(number, int) or number == 0:
        return f"{number:,.0f}"
    return f"{number:,.2f}" if abs(number) >= 0.01 else f"{number:.2g}"


def _won(record: Data) -> str:
    answer, candidates = record.get("answer"), record.get("candidates") or []
    if record.get("best") is None:
        return "No answer: no solution was finished"
    if answer is None and not candidates:
        return "No answer was recorded"
    if answer is None:
        return f"No answer: none of the {_solutions(record)} states one; the best scored is shown"
    if not candidates:
        return f"{answer} won"
    return f"{answer} won: {_support(record, str(answer))}"


def _support(record: Data, answer: str) -> str:
    """Who says so, and what that weighs under the rule that chose."""
    candidates, votes, rule = record.get("candidates") or [], record.get("votes") or {}, rule_of(record)
    count = sum(candidate.get("answer") == answer for candidate in candidates)
    if count == len(candidates):
        return f"all {_solutions(record)} agree" if count > 1 else "it is the only solution"
    if rule == "best":
        others = {1: "alone", 2: "as does 1 other"}.get(count, f"as do {count - 1} others")
        return f"the best scored of {_solutions(record)} says so ({short(votes[answer])}), {others}"
    say = f"{count} of {_solutions(record)} {'says' if count == 1 else 'say'} so"
    if rule == "majority":
        return f"{say} (majority)"
    mine, total = votes.get(answer, 0), math.fsum(votes.values())
    weighted = " (weighted by score)" if rule == "weighted" else ""
    return f"{say}, together {short(mine)} of {short(total)} votes{weighted}" if len(votes) > 1 else say


def _solutions(record: Data) -> str:
    """How many there are, and whether they ended by themselves."""
    candidates, nodes = record.get("candidates") or [], record.get("nodes") or []
    finished = sum(nodes[c["node"]].get("finish") in ("eos", "stop") for c in candidates if c["node"] < len(nodes))
    count = f"{len(candidates)}{' finished' if finished == len(candidates) else ''}"
    cut = f" ({finished} finished)" if 0 < finished < len(candidates) else ""
    return f"{count} solution{'s' if len(candidates) != 1 else ''}{cut}"


def _correct(record: Data, row: Data) -> str:
    kind, gold = verdict_of(row).kind, row.get("gold")
    if record.get("answer") is None:
        return f"the gold answer is {gold}" if gold is not None else ""
    if kind == "right":
        return f"it is correct (gold answer {gold})"
    if kind == "wrong":
        return f"it is wrong (gold answer {gold}, {_missed(record, row)})"
    if "gold" in row and gold is None:
        return "there is no gold answer to compare it with"
    return f"it is not graded{': ' + row['reason'] if row.get('reason') else ''}" if row else ""


def _missed(record: Data, row: Data) -> str:
    right = right_answers(record, row)
    count = sum(candidate.get("answer") in right for candidate in record.get("candidates") or [])
    votes = math.fsum(number for answer, number in (record.get("votes") or {}).items() if answer in right)
    if not count:
        return "which no solution found"
    say = "say" if count > 1 else "says"
    return f"which {count} {say}{'' if rule_of(record) == 'majority' else f', with {short(votes)} votes'}"


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5)

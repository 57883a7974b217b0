"""Explains in one sentence why an answer won, and in a few words which of the solutions with it was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from reason.runs.pages.records import CandidateRecord, TreeRecord, grade_label_of
from reason.runs.result import ProblemResult
from search.voting import VOTING_RULES, tally_votes


def explain_answer(record: TreeRecord, result: ProblemResult | None) -> str:
    """Returns the sentence for a tree record and its result; missing keys shorten it.

    >>> candidates = [{"node": 0, "answer": "4", "score": 0.9}, {"node": 1, "answer": "5", "score": 0.5}]
    >>> record = {"best": 0, "answer": "4", "votes": {"4": 0.9, "5": 0.5}, "candidates": candidates}
    >>> result = ProblemResult.from_json({"id": "p", "grade": "right", "gold": "4"})
    >>> explain_answer(record | {"strategy": {"select": "weighted"}}, result)
    '4 won: 1 of 2 solutions gives it, together 0.90 of 1.40 votes (weighted by score); it is correct (gold answer 4).'
    """
    if result is not None and result.error is not None:
        return f"The problem failed: {result.error}"
    clauses = [_won(record), _correct(record, result)]
    if result is not None and result.is_trusted is False and result.answer is not None:
        clauses.append("it is not trusted: its score, or share of the votes, is below trusted_score")
    if record.get("stopped") == "budget":
        clauses.append("the budget ended the search")
    return "; ".join(clause for clause in clauses if clause) + "."


def describe_choice(record: TreeRecord) -> str:
    """Returns which solution was chosen, such as `the best scored of 3 solutions with the answer 4`; "" without one.

    >>> candidates = [{"node": 0, "answer": "4", "score": None}, {"node": 1, "answer": "4", "score": None}]
    >>> describe_choice({"best": 0, "answer": "4", "candidates": candidates})
    'the first of 2 solutions with the answer 4'
    """
    best, answer = record.get("best"), record.get("answer")
    if best is None:
        return ""
    which = "without an answer" if answer is None else f"with the answer {answer}"
    mine = [candidate for candidate in record.get("candidates") or [] if candidate.get("answer") == answer]
    if len(mine) < 2:
        return f"the only solution {which}" if mine else f"the solution {which}"
    return f"{_place_among(mine, best)} of {len(mine)} solutions {which}"


def _place_among(candidates: Sequence[CandidateRecord], best: int) -> str:
    """Names the place of the solution that ends in `best`: a claim that its score is the highest needs scores."""
    scores = {candidate["node"]: candidate.get("score") for candidate in candidates}
    known, mine = [score for score in scores.values() if score is not None], scores.get(best)
    if len(set(known)) > 1 and mine == max(known):
        return "the best scored"
    places = {candidates[-1]["node"]: "the last", candidates[0]["node"]: "the first"}
    return places.get(best, "one")


def voting_rule_of(record: TreeRecord) -> str | None:
    """Returns the rule that gives the votes of a record; the declared one is tried first. None if no rule does."""
    votes, candidates = record.get("votes") or {}, record.get("candidates") or []
    answers, scores = [c.get("answer") for c in candidates], [c.get("score") for c in candidates]
    strategy = record.get("strategy") or {}
    for rule in dict.fromkeys([strategy.get("select"), "majority", *VOTING_RULES]):
        # runs of earlier releases ignored solutions without a score
        unscored = strategy.get("unscored", "ignore")
        tally = tally_votes(answers, scores, rule, unscored) if rule in VOTING_RULES else {}
        if votes and tally.keys() == votes.keys() and all(_is_close(tally[a], votes[a]) for a in votes):
            # without scores every rule counts solutions
            return "majority" if all(score is None for score in scores) else str(rule)
    return None


def voting_rule_of_row(result: ProblemResult) -> str | None:
    """Returns the rule that gives the votes of a row, as `voting_rule_of`."""
    settings = result.metadata.get("settings")
    known = settings if isinstance(settings, Mapping) else {}
    declared = {name: known[f"search.{name}"] for name in ("select", "unscored") if f"search.{name}" in known}
    candidates: list[CandidateRecord] = [
        {"node": sample.node, "answer": sample.answer, "score": sample.score} for sample in result.samples
    ]
    return voting_rule_of({"votes": result.votes, "candidates": candidates, "strategy": declared})


def correct_answers(record: TreeRecord, result: ProblemResult | None) -> set[str]:
    """Returns the answers graded correct; without graded samples, the one spelled like the gold answer."""
    if result is None:
        return set()
    answers = {sample.answer for sample in result.samples if sample.is_correct}
    if result.is_correct:
        answers.add(record.get("answer"))
    return {answer for answer in answers or {result.gold} if answer is not None}


def format_number(number: float) -> str:
    """Formats a number with at most two decimals, or two digits where it is small.

    >>> format_number(5.3102), format_number(0.00043), format_number(12), format_number(1234.5)
    ('5.31', '0.00043', '12', '1,234.50')
    """
    if isinstance(number, int) or number == 0:
        return f"{number:,.0f}"
    return f"{number:,.2f}" if abs(number) >= 0.01 else f"{number:.2g}"


def _won(record: TreeRecord) -> str:
    answer, candidates = record.get("answer"), record.get("candidates") or []
    if record.get("best") is None:
        return "No answer: no solution was finished"
    if answer is None and not candidates:
        return "No answer was recorded"
    if answer is None:
        shown = _place_among(candidates, record["best"] or 0)
        if len(candidates) == 1:
            return "No answer: the only solution states none"
        return f"No answer: none of the {_solutions(record)} states one; {shown} is shown"
    if not candidates:
        return f"{answer} won"
    return f"{answer} won: {_support(record, str(answer))}"


def _support(record: TreeRecord, answer: str) -> str:
    """Counts the solutions with the answer, and adds up their weight under the rule that chose."""
    candidates, votes, rule = record.get("candidates") or [], record.get("votes") or {}, voting_rule_of(record)
    count = sum(candidate.get("answer") == answer for candidate in candidates)
    if count == len(candidates):
        return f"all {_solutions(record)} agree" if count > 1 else "it is the only solution"
    if rule == "best":
        others = {1: "alone", 2: "as does 1 other"}.get(count, f"as do {count - 1} others")
        return f"the best scored of {_solutions(record)} gives it (score {format_number(votes[answer])}), {others}"
    support = f"{count} of {_solutions(record)} {'gives' if count == 1 else 'give'} it"
    if rule == "majority":
        equals = [other for other in votes if votes[other] == votes[answer]]
        if len(equals) > 1:
            rest = "1 other answer has" if len(equals) == 2 else f"{len(equals) - 1} other answers have"
            return f"{support}; {rest} as many" + (", and the first one wins" if equals[0] == answer else "")
        return f"{support}{' (majority)' if 2 * count > len(candidates) else ', more than any other answer'}"
    if len(votes) <= 1:
        return support
    mine, total = votes.get(answer, 0), math.fsum(votes.values())
    weighted = " (weighted by score)" if rule == "weighted" else ""
    return f"{support}, together {format_number(mine)} of {format_number(total)} votes{weighted}"


def _solutions(record: TreeRecord) -> str:
    """Counts the solutions, and those that ended with a stop or an end-of-sequence token."""
    candidates, nodes = record.get("candidates") or [], record.get("nodes") or []
    finishes = [nodes[c["node"]].get("finish") for c in candidates if c["node"] < len(nodes)]
    finished = sum(finish in ("eos", "stop") for finish in finishes)
    count = f"{len(candidates)}{' finished' if finished == len(candidates) else ''}"
    cut = f" ({finished or 'none'} finished)" if finished < len(finishes) else ""
    return f"{count} solution{'s' if len(candidates) != 1 else ''}{cut}"


def _correct(record: TreeRecord, result: ProblemResult | None) -> str:
    kind, gold = grade_label_of(result).kind, None if result is None else result.gold
    if record.get("answer") is None:
        return f"the gold answer is {gold}" if gold is not None else ""
    if kind == "right":
        return f"it is correct (gold answer {gold})"
    if kind == "wrong":
        return f"it is wrong (gold answer {gold}, {_missed(record, result)})"
    if result is None:
        return ""
    if gold is None:
        return "there is no gold answer to compare it with"
    return f"it is not graded{': ' + result.grade.reason if result.grade.reason else ''}"


def _missed(record: TreeRecord, result: ProblemResult | None) -> str:
    right = correct_answers(record, result)
    count = sum(candidate.get("answer") in right for candidate in record.get("candidates") or [])
    votes = [number for answer, number in (record.get("votes") or {}).items() if answer in right]
    if not count:
        return "which no solution found"
    missed, rule = f"which {count} {'give' if count > 1 else 'gives'}", voting_rule_of(record)
    if rule == "majority" or not votes:
        return missed
    if rule == "best":
        return f"{missed}, with a score of {format_number(max(votes))}{' at best' if count > 1 else ''}"
    return f"{missed}, with {format_number(math.fsum(votes))} votes"


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5)

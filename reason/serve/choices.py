"""Which of a search's solutions are returned, and what they cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reason.problem import Solution
from search.strategy import Candidate, SearchResult


@dataclass(frozen=True)
class Choice:
    """One solution as it is returned: its text ends before the first stop, `finish` is OpenAI's word for why."""

    node: int
    text: str
    finish: str
    answer: str | None
    score: float | None


def choices_of(solution: Solution, n: int, stop: Sequence[str]) -> list[Choice]:
    """The chosen solution, then others, `n` in all or as many as there are; none if the search came to nothing."""
    tree, found = solution.tree, []
    for candidate in ranked(solution.result)[:n]:
        whole = tree.text(candidate.node)
        text = before_stop(whole, stop)
        ended = text != whole or tree.nodes[candidate.node].finish in ("eos", "stop")
        found.append(Choice(candidate.node, text, "stop" if ended else "length", candidate.answer, candidate.score))
    return found


def ranked(result: SearchResult) -> list[Candidate]:
    """The chosen candidate, then the best scored of every other answer by falling votes, then the rest by score.

    Of a search that was ended before it had a solution, the branches it had, the longest first.
    """
    if not result.candidates:
        nodes = result.tree.nodes
        leaves = sorted(result.tree.leaves(), key=lambda leaf: -nodes[leaf].written)
        return [Candidate(leaf, None, nodes[leaf].score) for leaf in leaves]
    by_score = sorted(result.candidates, key=lambda c: (c.node != result.best, -_worth(c)))
    heads: dict[str | None, Candidate] = {}
    for candidate in by_score:
        heads.setdefault(candidate.answer, candidate)
    first = sorted(heads.values(), key=lambda c: (c.node != result.best, c.answer is None, -_votes(result, c)))
    return [*first, *(candidate for candidate in by_score if candidate not in first)]


def before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of these, which is left out.

    >>> before_stop("so 4. Question: what", ["Question:", "."])
    'so 4'
    """
    return text[: min((at for each in stop if (at := text.find(each)) >= 0), default=len(text))]


def usage_of(solution: Solution, choices: Sequence[Choice]) -> dict[str, Any]:
    """OpenAI's usage block: completion tokens are all that were generated in the search, thrown away or not; those that
    are not part of a returned solution are reasoning."""
    tree, spent = solution.tree, solution.spent
    generated = spent.tokens + spent.discarded_tokens
    returned = tree.count_tokens(tree.pinned(choice.node for choice in choices))
    return {
        "prompt_tokens": len(tree.root),
        "completion_tokens": generated,
        "total_tokens": len(tree.root) + generated,
        "completion_tokens_details": {"reasoning_tokens": generated - returned},
    }


def search_block(solution: Solution, preset: str, tree: str) -> dict[str, Any]:
    """What OpenAI's answers have no place for: how the search ended, its votes, its whole cost, and where to see it.

    `spent` has the scorer's tokens, forward passes and drafts (`decoding.core.Spent`).
    """
    return {
        "preset": preset,
        "tree": tree,
        "answer": solution.answer,
        "score": solution.score,
        "votes": solution.votes,
        "solutions": len(solution.result.candidates),
        "stopped": solution.result.stopped,
        "spent": asdict(solution.spent),
    }


def _worth(candidate: Candidate) -> float:
    return -math.inf if candidate.score is None else candidate.score


def _votes(result: SearchResult, candidate: Candidate) -> float:
    return result.votes.get(candidate.answer or "", 0.0)

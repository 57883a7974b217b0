"""Selects the solutions of a search that a response returns, and reports what the search used. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

from reason.problem import Solution
from reason.thinking import SolutionReader
from search.strategy import Candidate, SearchResult


@dataclass(frozen=True)
class CompletionChoice:
    """One returned solution.

    text           what follows the thought, up to the first stop string; None where the thought is not finished
    thought        "" without one
    finish_reason  `stop` or `length`
    """

    node: int
    text: str | None
    thought: str
    finish_reason: str
    answer: str | None
    score: float | None


def select_choices(solution: Solution, n: int, stop: Sequence[str], reader: SolutionReader) -> list[CompletionChoice]:
    """Returns at most `n` solutions, the chosen one first (`rank_candidates`); none if the tree is empty.

    `reader` splits them: that of the solution, or one without a thinking format where thoughts stay in the text.
    """
    tree, choices = solution.tree, []
    for candidate in rank_candidates(solution.result)[:n]:
        thought, whole_text, is_finished = reader.split(tree.path_text(candidate.node))
        text = cut_at_stop(whole_text, stop)
        ended = text != whole_text or tree.nodes[candidate.node].finish in ("eos", "stop")
        choices.append(
            CompletionChoice(
                node=candidate.node,
                text=text if is_finished else None,
                thought=thought,
                finish_reason="stop" if ended else "length",
                answer=candidate.answer,
                score=candidate.score,
            )
        )
    return choices


def rank_candidates(result: SearchResult) -> list[Candidate]:
    """Orders candidates: the chosen one, the best scored of every other answer by descending votes, the rest by score.

    A path that votes several times is one choice. If the search was ended before it had a solution: its unfinished
    branches, the longest first.
    """
    if not result.candidates:
        nodes = result.tree.nodes
        leaves = sorted(result.tree.leaf_nodes(), key=lambda leaf: -nodes[leaf].num_path_tokens)
        return [Candidate(leaf, None, nodes[leaf].score) for leaf in leaves]
    by_score = sorted(dict.fromkeys(result.candidates), key=lambda c: (c.node != result.best, -_score_or_lowest(c)))
    heads: dict[str | None, Candidate] = {}
    for candidate in by_score:
        heads.setdefault(candidate.answer, candidate)
    first = sorted(heads.values(), key=lambda c: (c.node != result.best, c.answer is None, -_votes_of(result, c)))
    return [*first, *(candidate for candidate in by_score if candidate not in first)]


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Returns the text before the first occurrence of a stop string.

    >>> cut_at_stop("so 4. Question: what", ["Question:", "."])
    'so 4'
    """
    return text[: min((at for each in stop if (at := text.find(each)) >= 0), default=len(text))]


class UsageBlock(TypedDict):
    """OpenAI's `usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: dict[str, int]


class SearchBlock(TypedDict):
    """`search`, the part of a response that OpenAI's API does not have.

    tree       path of the search's page on this server
    is_trusted  whether the answer's score, or share of the votes, is at least `trusted_score`; null where nothing tells
    solutions  finished solutions that the search found
    stopped    `done`, `budget` or `decided`, see `search.strategy.SearchResult`
    lossy      settings under which text is not distributed as the target model's; empty if there are none
    usage      all that the search used: tokens, scorer tokens, forward passes, drafts (`decoding.core.Usage`)
    """

    preset: str
    tree: str
    answer: str | None
    score: float | None
    is_trusted: bool | None
    votes: Mapping[str, float]
    solutions: int
    stopped: str
    lossy: Sequence[str]
    usage: dict[str, int | float]


def usage_block(solution: Solution, choices: Sequence[CompletionChoice]) -> UsageBlock:
    """Returns OpenAI's `usage`: completion tokens are all tokens that the search generated, discarded ones included.

    Those of thoughts, and those that belong to no returned solution, count as reasoning tokens.
    """
    tree, usage = solution.tree, solution.usage
    thoughts: dict[int, int] = {}
    for choice in choices:  # a step that several of them share counts once
        thoughts |= solution.reader.count_thought_tokens(tree, choice.node)
    generated = usage.tokens + usage.discarded_tokens
    returned = tree.count_tokens(tree.pinned_nodes(choice.node for choice in choices))
    # The text that ends a thought by force is in the tree and was not generated.
    reasoning = max(0, generated - returned + sum(thoughts.values()))
    return {
        "prompt_tokens": len(tree.root),
        "completion_tokens": generated,
        "total_tokens": len(tree.root) + generated,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def search_block(solution: Solution, preset: str, tree: str, lossy: Sequence[str]) -> SearchBlock:
    """Returns how the search ended, its votes, what it used, and where its tree is."""
    return {
        "preset": preset,
        "tree": tree,
        "answer": solution.answer,
        "score": solution.score,
        "is_trusted": solution.is_trusted,
        "votes": solution.votes,
        "solutions": len(solution.result.candidates),
        "stopped": solution.result.stop_reason,
        "lossy": lossy,
        "usage": asdict(solution.usage),
    }


def _score_or_lowest(candidate: Candidate) -> float:
    return -math.inf if candidate.score is None else candidate.score


def _votes_of(result: SearchResult, candidate: Candidate) -> float:
    return result.votes.get(candidate.answer or "", 0.0)

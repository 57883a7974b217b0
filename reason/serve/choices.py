"""Selects the solutions of a search that a response returns, and reports what the search used. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

from decoding.core import Tokens
from reason.problem import LikelyToken, Solution
from reason.serve.tool_calls import CallingText, ToolCall
from reason.thinking import SolutionReader
from search.strategy import Candidate, SearchResult


@dataclass(frozen=True)
class TokenLogprob:
    """A token of a text and its log-probability under the model (temperature 1, unfiltered).

    alternatives  the most likely tokens at its place, best first, itself among them where it is one
    """

    text: str
    logprob: float
    alternatives: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class CompletionChoice:
    """One returned solution.

    text           what follows the thought, up to the first stop string; None where the thought is not finished
    thought        "" without one
    finish_reason  `stop`, `length` or `tool_calls`
    calls          the tools that it calls
    logprobs       the tokens of the text with their log-probabilities; None where not requested, or not known
    """

    node: int
    text: str | None
    thought: str
    finish_reason: str
    answer: str | None
    score: float | None
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


def select_choices(
    solution: Solution,
    n: int,
    stop: Sequence[str],
    reader: SolutionReader,
    *,
    read_reply: Callable[[str], CallingText] | None = None,
    decode: Callable[[Tokens], str] | None = None,
) -> list[CompletionChoice]:
    """Returns at most `n` solutions, the chosen one first (`rank_candidates`); none if the tree is empty.

    `reader` splits them: that of the solution, or one without a thinking format where thoughts stay in the text.
    `read_reply` finds the tool calls in the text of one that votes; others are then no choice. With `decode` choices
    have log-probabilities.
    """
    tree, choices = solution.tree, []
    ranked = rank_candidates(solution.result)
    for candidate in [each for each in ranked if read_reply is None or each.answer is not None][:n]:
        thought, whole_text, is_finished = reader.split(tree.path_text(candidate.node))
        text = cut_at_stop(whole_text, stop)
        calls: tuple[ToolCall, ...] = ()
        ended = text != whole_text or tree.nodes[candidate.node].finish in ("eos", "stop")
        logprobs = None if decode is None else read_logprobs(solution, candidate.node, len(text), reader, decode)
        if read_reply is not None:
            reply = read_reply(whole_text)
            text, calls = reply.text, reply.calls
        choices.append(
            CompletionChoice(
                node=candidate.node,
                text=text if is_finished and (text or not calls) else None,
                thought=thought,
                finish_reason="tool_calls" if calls else "stop" if ended else "length",
                answer=candidate.answer,
                score=candidate.score,
                calls=calls,
                logprobs=logprobs,
            )
        )
    return choices


def read_logprobs(
    solution: Solution, node: int, length: int, reader: SolutionReader, decode: Callable[[Tokens], str]
) -> tuple[TokenLogprob, ...] | None:
    """Returns the tokens behind the thought of a path, up to `length` characters; None where some are not known."""
    inside, skipped = reader.measure_thought(solution.tree, node), reader.count_thought_tokens(solution.tree, node)
    left, entries = length, list[TokenLogprob]()
    likely = iter(_find_likely(solution, node))
    for i in solution.tree.path_nodes(node):
        step, first = solution.tree.nodes[i].step, skipped.get(i, 0)
        if len(step.logprobs) != len(step.tokens):
            return None
        begin = inside.get(i, 0)
        used = min(left, len(step.text) - begin)
        last = len(step.tokens) if left > used else _count_spelling(step.tokens, begin + used, decode)
        left -= used
        for place, (token, logprob) in enumerate(zip(step.tokens, step.logprobs, strict=True)):
            others = next(likely, [])
            if first <= place < last and (text := decode((token,))):  # the token that ends a text has none
                # the chosen one has one number: another batch would give another last digit
                alternatives = [(each.id, logprob if each.id == token else each.logprob) for each in others]
                named = tuple(TokenLogprob(decode((number,)), value) for number, value in alternatives)
                entries.append(TokenLogprob(text, logprob, named))
    return tuple(entries)


def _count_spelling(tokens: Tokens, length: int, decode: Callable[[Tokens], str]) -> int:
    """Returns the number of tokens that spell this many characters; a character may have several tokens.

    Parts of a character have the length of one, so a text is measured as a whole and not token by token.
    """
    counts = range(len(tokens) + 1)

    def measure(count: int) -> int:
        return len(decode(tokens[:count]))

    return max(bisect_left(counts, length, key=measure), bisect_right(counts, length, key=measure) - 1)


def _find_likely(solution: Solution, node: int) -> list[list[LikelyToken]]:
    """Returns the likely tokens at each token of a path; an empty list where none were recorded."""
    if solution.top_tokens is None:
        return []
    tokens = solution.tree.prefix_tokens(node)
    num_path = sum(len(step.tokens) for step in solution.tree.path_steps(node))
    return solution.top_tokens.find(tokens, len(tokens) - num_path)


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
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class SearchBlock(TypedDict):
    """`search`, the part of a response that OpenAI's API does not have.

    tree       address of the search's page on this server
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

    Those of thoughts, and those that belong to no returned solution, count as reasoning tokens. Cached are the tokens
    of the prompt that an earlier request had left in the prefix cache, as in a chat's next turn.
    """
    tree, usage = solution.tree, solution.usage
    thoughts: dict[int, int] = {}
    for choice in choices:  # a step that several of them share counts once
        thoughts |= solution.reader.count_thought_tokens(tree, choice.node)
    generated = usage.tokens + usage.discarded_tokens
    returned = tree.count_tokens(tree.pinned_nodes(choice.node for choice in choices))
    # The text that ends a thought by force is in the tree and was not generated.
    reasoning = max(0, generated - returned + sum(thoughts.values()))
    # Every call of the search computes the last token of its prefix.
    computed = usage.prompt_tokens - usage.cached_tokens - max(0, usage.calls - 1)
    return {
        "prompt_tokens": len(tree.root),
        "completion_tokens": generated,
        "total_tokens": len(tree.root) + generated,
        "prompt_tokens_details": {"cached_tokens": max(0, len(tree.root) - computed)},
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

"""Samples whole solutions independently and chooses one: shared by best-of-N and self-consistency."""

from __future__ import annotations

from dataclasses import replace

from decoding.core import SamplingParams, Tokens
from search.expand import Expander
from search.strategy import Candidate, Resources, SearchResult
from search.tree import SearchTree
from search.voting import choose_solution, majority_error_bound, tally_votes

MAX_WAVES = 4


async def sample_and_choose(
    root: Tokens,
    resources: Resources,
    *,
    n: int,
    sampling: SamplingParams,
    voting_rule: str,
    agg_strategy: str,
    unscored: str,
    stop_error: float | None = None,
) -> SearchResult:
    """Samples up to `n` solutions of `root` (fewer if the budget runs out) and chooses one by `voting_rule`.

    With `stop_error` the same solutions are sampled in waves of a quarter, until the majority vote is wrong with at
    most this probability (`search.voting.majority_error_bound`).
    """
    expander = Expander(root, resources)
    candidates: list[Candidate] = []
    wave = n if stop_error is None else -(-n // MAX_WAVES)  # rounded up
    for first in range(0, n, wave):
        size = min(wave, n - first)
        leaves = await expander.sample_continuations([SearchTree.ROOT] * size, sampling, one_step=False)
        candidates += [
            Candidate(
                leaf,
                resources.extract_answer(expander.tree.path_text(leaf)),
                expander.tree.path_score(leaf, agg_strategy),
            )
            for leaf in leaves
            if leaf != SearchTree.ROOT  # an empty generation
        ]
        if stop_error is None or len(leaves) < size or first + size == n:
            break
        votes = tally_votes([c.answer for c in candidates], [None] * len(candidates), "majority")
        if majority_error_bound(votes) <= stop_error:
            return replace(build_result(expander, candidates, voting_rule, unscored), stop_reason="decided")
    return build_result(expander, candidates, voting_rule, unscored)


def build_result(expander: Expander, candidates: list[Candidate], voting_rule: str, unscored: str) -> SearchResult:
    """Builds the result of a search; chooses among candidates that finished or have an answer (`choose_solution`)."""
    finished = expander.tree.finished_leaves()
    eligible = [c for c in candidates if c.answer is not None or c.node in finished]
    choice = choose_solution([c.answer for c in eligible], [c.score for c in eligible], voting_rule, unscored)
    return SearchResult(
        tree=expander.tree,
        best=None if choice.index is None else eligible[choice.index].node,
        usage=expander.usage,
        stop_reason=expander.stop_reason,
        votes=choice.votes,
        candidates=tuple(candidates),
        selections=tuple(expander.selections),
    )

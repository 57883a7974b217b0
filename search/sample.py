"""Samples whole solutions independently and chooses one: shared by best-of-N and self-consistency."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from decoding.core import SamplingParams, Tokens, Vector
from search.expand import Expander
from search.strategy import Candidate, Resources, SearchResult
from search.tree import SearchTree
from search.voting import (
    choose_solution,
    choose_voters,
    is_majority_certain,
    leading_share,
    majority_error_bound,
    tally_votes,
)
from search.weak_branches import DropKnobs

log = logging.getLogger(__name__)

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
    stop_share: float | None = None,
    keep: float = 1.0,
    drop: DropKnobs | None = None,
) -> SearchResult:
    """Samples up to `n` solutions of `root` (fewer if the budget runs out) and chooses one by `voting_rule`.

    With `stop_error` the same solutions are sampled in waves of a quarter, until the majority vote is wrong with at
    most this probability (`search.voting.majority_error_bound`), or no further solution can change it. That is asked of
    the solutions so far after each of them, in the order of their requests; the rest of the wave is then cancelled.
    With `stop_share` the same ends where the leading answer has at least this share of the votes, by `voting_rule`, of
    `drop.warm_up` solutions or more (DeepConf, arXiv 2508.15260, section 3.3, adaptive sampling).
    With `drop` the first wave is its warm-up; later solutions that are dropped have no answer and do not vote.
    `resources.earlier` are the first of the `n`, where neither of these is set.
    """
    expander = Expander(root, resources)
    candidates: list[Candidate] = []
    if resources.earlier is not None:
        expander.continue_samples(resources.earlier)
        candidates += resources.earlier.candidates
        n = max(0, n - resources.earlier.num_requests)
    may_stop = stop_error is not None or stop_share is not None
    wave = -(-n // MAX_WAVES) if may_stop else n  # rounded up
    has_floor = drop is not None and drop.drop_percentile is not None
    warm_up = 0 if drop is None else drop.warm_up
    num_warm_up = min(warm_up, n) if has_floor or stop_share is not None else 0
    sizes = [num_warm_up] if num_warm_up else []
    sizes += [min(wave, n - first) for first in range(num_warm_up, n, wave)]
    num_left, is_decided = n, False

    def count_vote(leaf: int) -> bool:
        nonlocal num_left, is_decided
        num_left -= 1
        if leaf != SearchTree.ROOT:  # an empty generation
            candidates.append(make_candidate(expander, leaf, agg_strategy))
        if num_left and may_stop:
            answers, scores = [c.answer for c in candidates], [c.score for c in candidates]
            if stop_error is not None:
                votes = tally_votes(answers, [None] * len(answers), "majority")
                is_decided = majority_error_bound(votes) <= stop_error or is_majority_certain(votes, num_left)
            elif stop_share is not None and n - num_left >= warm_up:
                is_decided = leading_share(tally_votes(answers, scores, voting_rule, unscored)) >= stop_share
        return is_decided

    for i, size in enumerate(sizes):
        leaves = await expander.sample_continuations(
            [SearchTree.ROOT] * size,
            sampling,
            one_step=False,
            resources=resources,
            is_enough=count_vote if may_stop else None,
        )
        if not may_stop:
            for leaf in leaves:
                count_vote(leaf)
        if is_decided:
            return replace(build_result(expander, candidates, voting_rule, unscored), stop_reason="decided")
        if len(leaves) < size or i == len(sizes) - 1:
            break
        if drop is not None and has_floor and i == 0:
            resources = replace(resources, floor=drop.find_floor(read_confidences(expander, candidates)))
            if resources.floor is None:
                log.warning("search.drop_percentile drops nothing: the engine measured none of the first solutions")
    return build_result(expander, candidates, voting_rule, unscored, keep)


def make_candidate(expander: Expander, leaf: int, agg_strategy: str) -> Candidate:
    """Returns the solution that ends at a leaf; one that was dropped has no answer, whatever it says so far."""
    tree = expander.tree
    is_dropped = tree.nodes[leaf].finish == "dropped"
    answer = None if is_dropped else expander.resources.extract_answer(tree.path_text(leaf))
    return Candidate(leaf, answer, tree.path_score(leaf, agg_strategy))


def read_confidences(expander: Expander, candidates: Sequence[Candidate]) -> list[Vector]:
    """Returns the confidences of the tokens of each solution that was measured."""
    paths = [[step.confidences for step in expander.tree.path_steps(c.node)] for c in candidates]
    measured = [[values for values in path if values is not None] for path in paths]
    return [np.concatenate(values) for values, path in zip(measured, paths, strict=True) if len(values) == len(path)]


def build_result(
    expander: Expander, candidates: list[Candidate], voting_rule: str, unscored: str, keep: float = 1.0
) -> SearchResult:
    """Builds the result of a search; chooses among candidates that finished or have an answer (`choose_solution`).

    Only the share `keep` of them with the highest scores votes (`choose_voters`).
    """
    finished = set(expander.tree.finished_leaves())
    eligible = [c for c in candidates if c.answer is not None or c.node in finished]
    eligible = [
        eligible[i] for i in choose_voters([c.answer for c in eligible], [c.score for c in eligible], keep, unscored)
    ]
    choice = choose_solution([c.answer for c in eligible], [c.score for c in eligible], voting_rule, unscored)
    return SearchResult(
        tree=expander.tree,
        best=None if choice.index is None else eligible[choice.index].node,
        usage=expander.usage,
        stop_reason="budget" if expander.has_late_thoughts else expander.stop_reason,
        votes=choice.votes,
        candidates=tuple(candidates),
        selections=tuple(expander.selections),
    )

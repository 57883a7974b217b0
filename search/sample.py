"""Sample whole solutions independently and choose one: what best-of-N and self-consistency share."""

from __future__ import annotations

from decoding.core import SamplingParams, Tokens
from search.base import Candidate, Resources, SearchResult
from search.expand import Expander
from search.tree import SearchTree
from search.vote import choose


async def sample_and_choose(
    root: Tokens, resources: Resources, *, n: int, sampling: SamplingParams, rule: str, agg_strategy: str
) -> SearchResult:
    """Up to `n` solutions of `root` (fewer if the budget runs out) and the one `rule` prefers."""
    run = Expander(root, resources)
    leaves = await run.solutions([SearchTree.ROOT] * n, sampling)
    candidates = [
        Candidate(leaf, resources.answer_of(run.tree.text(leaf)), run.tree.score(leaf, agg_strategy))
        for leaf in leaves
        if leaf != SearchTree.ROOT
    ]
    return conclude(run, candidates, rule)


def conclude(run: Expander, candidates: list[Candidate], rule: str) -> SearchResult:
    """The result of a search that ended with these candidates: `rule` chooses among those it may choose."""
    finished = run.tree.finished()
    eligible = [c for c in candidates if c.answer is not None or c.node in finished]
    choice = choose([c.answer for c in eligible], [c.score for c in eligible], rule)
    best = None if choice.index is None else eligible[choice.index].node
    return SearchResult(run.tree, best, run.spent, run.stopped, choice.votes, tuple(candidates), tuple(run.selections))

"""Sample whole solutions independently and choose one: what best-of-N and self-consistency share."""

from __future__ import annotations

from dataclasses import replace

from decoding.core import SamplingParams, Tokens
from search.expand import Expander
from search.strategy import Candidate, Resources, SearchResult
from search.tree import SearchTree
from search.voting import choose, risk, tally

WAVES = 4


async def sample_and_choose(
    root: Tokens,
    resources: Resources,
    *,
    n: int,
    sampling: SamplingParams,
    rule: str,
    agg_strategy: str,
    stop_error: float | None = None,
) -> SearchResult:
    """Up to `n` solutions of `root` (fewer if the budget runs out) and the one `rule` prefers.

    With `stop_error` they are drawn in waves of a quarter, the same ones as otherwise, and no more once the count of
    heads is wrong with at most this probability (`vote.risk`).
    """
    run = Expander(root, resources)
    candidates: list[Candidate] = []
    wave = n if stop_error is None else -(-n // WAVES)
    for first in range(0, n, wave):
        asked = min(wave, n - first)
        leaves = await run.solutions([SearchTree.ROOT] * asked, sampling)
        candidates += [
            Candidate(leaf, resources.answer_of(run.tree.text(leaf)), run.tree.score(leaf, agg_strategy))
            for leaf in leaves
            if leaf != SearchTree.ROOT
        ]
        if stop_error is None or len(leaves) < asked or first + asked == n:
            break
        if risk(tally([c.answer for c in candidates], [None] * len(candidates), "majority")) <= stop_error:
            return replace(conclude(run, candidates, rule), stopped="decided")
    return conclude(run, candidates, rule)


def conclude(run: Expander, candidates: list[Candidate], rule: str) -> SearchResult:
    """The result of a search that ended with these candidates: `rule` chooses among those it may choose."""
    finished = run.tree.finished()
    eligible = [c for c in candidates if c.answer is not None or c.node in finished]
    choice = choose([c.answer for c in eligible], [c.score for c in eligible], rule)
    best = None if choice.index is None else eligible[choice.index].node
    return SearchResult(run.tree, best, run.spent, run.stopped, choice.votes, tuple(candidates), tuple(run.selections))

"""Grow a tree level by level: what beam search, DVTS and REBASE share. They differ in who is continued how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from decoding.core import SamplingParams, Tokens
from search.base import Candidate, Resources, SearchResult
from search.expand import Expander
from search.sample import conclude
from search.tree import SearchTree


@dataclass(frozen=True)
class Frontier:
    """The open branches of a level, in the order they were asked for.

    A branch that is not scored has the lowest score there is, so that it goes on only where there is nothing better.
    """

    tree: SearchTree
    nodes: tuple[int, ...]
    scores: tuple[float, ...]

    @classmethod
    def of(cls, tree: SearchTree, nodes: Sequence[int], agg_strategy: str) -> Frontier:
        scores = [tree.score(node, agg_strategy) for node in nodes]
        lowest = min((score for score in scores if score is not None), default=0.0)
        return cls(tree, tuple(nodes), tuple(lowest if score is None else score for score in scores))


Rule = Callable[[Frontier, int], Sequence[int]]
"""From open branches and the width left, the number of continuations of each."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The knobs of a search by levels.

    n            how many branches at once: the width
    depth        levels at most; what is open then is a candidate as it is
    step_tokens  tokens of a step at most; a step that reaches them ends its branch
    hand_back    a finished branch's width goes to the others; else the search narrows, as published, and costs no
                 more than `n` solutions
    """

    n: int
    depth: int
    step_tokens: int
    hand_back: bool = False


async def search_by_levels(
    root: Tokens,
    resources: Resources,
    levels: Levels,
    *,
    rule: Rule,
    sampling: SamplingParams,
    agg_strategy: str,
    select: str,
) -> SearchResult:
    """The tree that `rule` grows, and the solution that `select` chooses. A branch ends with its end-of-sequence token,
    a stop, or when it has `sampling.max_tokens` tokens."""
    run = Expander(root, resources)
    one_step = replace(sampling, max_tokens=min(levels.step_tokens, sampling.max_tokens))
    nodes, widths, width = [SearchTree.ROOT], [levels.n], levels.n
    ended: list[int] = []
    for _ in range(levels.depth):
        parents = [node for node, wanted in zip(nodes, widths, strict=True) for _ in range(wanted)]
        leaves = await run.steps(parents, one_step)
        # a step of no tokens is no node: the branch ends with what it had
        grown = [leaf for leaf, parent in zip(leaves, parents, strict=False) if leaf != parent]
        nodes = [leaf for leaf in grown if _is_open(run.tree, leaf, sampling.max_tokens)]
        ended += [leaf for leaf in dict.fromkeys(leaves) if leaf not in nodes and leaf != SearchTree.ROOT]
        if not levels.hand_back:
            width -= len(leaves) - len(nodes)
        if not nodes or width < 1 or run.stopped == "budget":
            break
        widths = list(rule(Frontier.of(run.tree, nodes, agg_strategy), width))
    candidates = [
        Candidate(leaf, resources.answer_of(run.tree.text(leaf)), run.tree.score(leaf, agg_strategy))
        for leaf in [*ended, *nodes]
        if leaf != SearchTree.ROOT
    ]
    return conclude(run, candidates, select)


def _is_open(tree: SearchTree, node: int, max_tokens: int) -> bool:
    written = sum(len(step.tokens) for step in tree.steps(node))
    return tree.nodes[node].finish is None and written < max_tokens

"""DVTS: independent subtrees, each going on with its own best branch, so that the winners differ.

Diverse verifier tree search, from the search-and-learn code base (Beeching, Tunstall, Rush 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core import SamplingParams, Tokens
from search.aggregate import check_aggregation
from search.allocate import best_widths
from search.base import Resources, SearchResult
from search.knobs import require_count
from search.levels import Frontier, Levels, search_by_levels
from search.tree import SearchTree
from search.vote import check_rule


@dataclass(frozen=True, kw_only=True)
class Dvts:
    """`n / beam_width` subtrees; in each, every level, the best branch goes on `beam_width` times.

    A finished branch is a candidate, best of its subtree or not, and narrows its own subtree by one. (The published
    code goes on until the best is finished, and hands back unfinished siblings.)

    n             how many branches at once; a multiple of beam_width
    beam_width    continuations of the best branch of a subtree
    depth         levels at most
    step_tokens   tokens of a step at most
    agg_strategy  how the step scores of a path become one: `last`, `min`, `prod` or `mean`
    select        how the answer is chosen: `weighted`, `majority` or `best`
    sampling      how steps are sampled; `max_tokens` is a solution's

    Raises: ValueError naming the knob, what was wanted and what was got.
    """

    n: int = 16
    beam_width: int = 4
    depth: int = 40
    step_tokens: int = 256
    agg_strategy: str = "last"
    select: str = "weighted"
    sampling: SamplingParams = field(default_factory=SamplingParams)

    needs_scorer = True

    def __post_init__(self) -> None:
        for name in ("n", "beam_width", "depth", "step_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        if self.n % self.beam_width:
            raise ValueError(f"n must be a multiple of beam_width={self.beam_width}, got {self.n}")
        check_aggregation(self.agg_strategy)
        check_rule(self.select)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        return await search_by_levels(
            root,
            resources,
            Levels(n=self.n, depth=self.depth, step_tokens=self.step_tokens),
            rule=self._widths,
            sampling=self.sampling,
            agg_strategy=self.agg_strategy,
            select=self.select,
        )

    def _widths(self, frontier: Frontier, width: int) -> list[int]:
        widths = [0] * len(frontier.nodes)
        for members in self._subtrees(frontier):
            # as many as are open: what has finished narrows its subtree
            dealt = best_widths([frontier.scores[i] for i in members], len(members), keep=1)
            for i, its in zip(members, dealt, strict=True):
                widths[i] = its
        return widths

    def _subtrees(self, frontier: Frontier) -> list[list[int]]:
        """The places of open branches, by the first step they descend from: `beam_width` first steps are a subtree."""
        tree = frontier.tree
        first_steps = [i for i, node in enumerate(tree.nodes) if node.parent == SearchTree.ROOT]
        subtree = {node: place // self.beam_width for place, node in enumerate(first_steps)}
        members: dict[int, list[int]] = {}
        for i, node in enumerate(frontier.nodes):
            members.setdefault(subtree[tree.path(node)[0]], []).append(i)
        return list(members.values())

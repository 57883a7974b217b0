"""DVTS: independent subtrees, each going on with its own best branch, so that the winners differ.

Diverse verifier tree search, from the search-and-learn code base (Beeching, Tunstall, Rush 2024).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from decoding.validation import require_count
from search.allocation import best_widths
from search.level_search import Allocation, Frontier, LevelSearch
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class Dvts(LevelSearch):
    """`n / beam_width` subtrees; in each, every level, the best branch goes on `beam_width` times.

    A finished branch is a candidate, best of its subtree or not, and narrows its own subtree by one, unless it hands
    its width back to it. (The published code goes on until the best is finished, and hands in unfinished siblings.)

    n             how many branches at once; a multiple of beam_width
    beam_width    continuations of the best branch of a subtree
    """

    depth: int = 40
    beam_width: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("beam_width", self.beam_width, at_least=1)
        if self.n % self.beam_width:
            raise ValueError(f"n must be a multiple of beam_width={self.beam_width}, got {self.n}")

    async def allocate(self, frontier: Frontier, width: int) -> Allocation:
        tree = frontier.walk.tree
        first_steps = [i for i, node in enumerate(tree.nodes) if node.parent == SearchTree.ROOT]
        subtree = {node: place // self.beam_width for place, node in enumerate(first_steps)}
        ended = Counter(subtree[tree.path(node)[0]] for node in frontier.walk.ended)
        members: dict[int, list[int]] = {}
        for i, node in enumerate(frontier.nodes):
            members.setdefault(subtree[tree.path(node)[0]], []).append(i)
        widths = [0] * len(frontier.nodes)
        for number, its in members.items():
            left = self.beam_width - (0 if self.hand_back else ended[number])
            for i, dealt in zip(its, best_widths([frontier.scores[i] for i in its], left, keep=1), strict=True):
                widths[i] = dealt
        return Allocation(widths)

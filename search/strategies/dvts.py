"""DVTS: beam search in independent subtrees, so that the solutions differ.

Diverse verifier tree search, from the search-and-learn code base (Beeching, Tunstall, Rush 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.validation import require_count
from search.allocation import allocate_to_best
from search.level_search import Allocation, Frontier, LevelSearch
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class Dvts(LevelSearch):
    """Continues the best branch of each of `n / beam_width` subtrees `beam_width` times per level.

    A finished branch is a candidate, whether it is the best of its subtree or not, and narrows its subtree by one
    unless `keep_width`. (The published code continues until the best branch is finished, and returns unfinished
    siblings as candidates.)

    n             number of branches at a time; a multiple of beam_width
    beam_width    continuations of the best branch of a subtree
    """

    beam_width: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("beam_width", self.beam_width, at_least=1)
        if self.n % self.beam_width:
            raise ValueError(f"n must be a multiple of beam_width={self.beam_width}, got {self.n}")

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        tree = frontier.state.tree
        num_closed = Counter(self.find_parts(tree, [*frontier.state.ended_nodes, *frontier.state.given_up]))
        branches: dict[int, list[int]] = {}
        for i, subtree in enumerate(self.find_parts(tree, frontier.nodes)):
            branches.setdefault(subtree, []).append(i)
        widths = [0] * len(frontier.nodes)
        for subtree, indices in branches.items():
            # `merge_extra` may end more branches than a subtree has width
            remaining = max(0, self.beam_width - (0 if self.keep_width else num_closed[subtree]))
            allocated = allocate_to_best([frontier.scores[i] for i in indices], remaining, num_kept=1)
            for i, count in zip(indices, allocated, strict=True):
                widths[i] = count
        return Allocation(widths)

    def find_parts(self, tree: SearchTree, nodes: Sequence[int]) -> list[int]:
        """Returns the subtree of each node: the first `beam_width` steps found subtree 0, the next ones subtree 1."""
        first_steps = [i for i, node in enumerate(tree.nodes) if node.parent == SearchTree.ROOT]
        subtree_of = {node: i // self.beam_width for i, node in enumerate(first_steps)}
        return [subtree_of[tree.path_nodes(node)[0]] for node in nodes]

"""Grow a tree level by level: what beam search, DVTS, REBASE and ETS share. They differ in who goes on how often."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from decoding.core import Tokens
from decoding.validation import require_switch
from search.step_search import TreeSearch
from search.step_search_state import Walk
from search.strategy import Resources, SearchResult
from search.tree import SearchTree


@dataclass(frozen=True)
class Frontier:
    """The open branches of a level, in the order they were asked for, and their folded scores."""

    walk: Walk
    nodes: Sequence[int]
    scores: Sequence[float]


@dataclass(frozen=True)
class Allocation:
    """How many continuations each branch of a frontier gets; `reasons` and `note` as in `Selection`."""

    widths: Sequence[int]
    reasons: dict[int, str] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LevelSearch(TreeSearch, ABC):
    """A search by levels; `n` branches at once. See `TreeSearch` for the knobs that are not named here.

    hand_back  a finished branch's width goes to the others; else the search narrows, as published, and costs no
               more than `n` solutions
    """

    hand_back: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_switch("hand_back", self.hand_back)

    @abstractmethod
    async def allocate(self, frontier: Frontier, width: int) -> Allocation:
        """Who goes on how often; `width` continuations are to be given."""

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        walk = Walk(root, resources, self)
        parents = [SearchTree.ROOT] * self.n
        for levels_left in reversed(range(self.depth)):
            nodes = await walk.grow(parents)
            width = self.n if self.hand_back else self.n - walk.closed
            if not nodes or width < 1 or walk.run.stopped == "budget":
                break
            if walk.decided(could_add=width * (levels_left if self.hand_back else 1)):
                break
            dealt = await self.allocate(Frontier(walk, nodes, walk.scores(nodes)), width)
            walk.note(nodes, dealt.widths, reasons=dealt.reasons, **dealt.note)
            parents = [node for node, wanted in zip(nodes, dealt.widths, strict=True) for _ in range(wanted)]
        return walk.conclude(still_open=nodes)

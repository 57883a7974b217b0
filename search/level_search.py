"""Expands a tree level by level: shared by beam search, DVTS, REBASE and ETS, which differ in their allocation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding.core import Tokens
from decoding.validation import require_switch
from search.allocation import normalise_scores
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategy import Resources, SearchResult
from search.tree import SearchTree


@dataclass(frozen=True)
class Frontier:
    """Open branches of a level, in the order of their requests, and their path scores, normalised."""

    state: StepSearchState
    nodes: Sequence[int]
    scores: Sequence[float]


@dataclass(frozen=True)
class Allocation:
    """Number of continuations of each branch of a frontier; `reasons` and `note` as in `Selection`."""

    widths: Sequence[int]
    reasons: dict[int, str] = field(default_factory=dict)
    note: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LevelSearch(StepSearch, ABC):
    """Search by levels with `n` branches at a time. `StepSearch` describes the other knobs.

    keep_width  whether the width of a finished branch goes to the others; otherwise the search narrows, as published,
                and generates at most `n` solutions
    """

    keep_width: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_switch("keep_width", self.keep_width)

    @abstractmethod
    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        """Distributes `width` continuations over the open branches; returns a count per branch."""

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        parents = [SearchTree.ROOT] * self.n
        levels_left = math.inf if self.depth is None else self.depth

        def count_remaining(num_pending: int) -> float:
            return num_pending + self.n * levels_left if self.keep_width else self.n - state.num_closed

        while True:
            levels_left -= 1
            nodes = await state.expand_nodes(parents, count_remaining)
            width = self.n if self.keep_width else self.n - state.num_closed
            if not nodes or width < 1 or state.expander.stop_reason == "budget":
                break
            if state.update_decided(num_remaining=width * (levels_left if self.keep_width else 1)):
                break
            scores = normalise_scores(state.scores_of_nodes(nodes), self.normalise)
            allocation = await self.allocate_widths(Frontier(state, nodes, scores), width)
            state.record_decision(nodes, allocation.widths, reasons=allocation.reasons, note=allocation.note)
            parents = [node for node, count in zip(nodes, allocation.widths, strict=True) for _ in range(count)]
        return state.build_result(still_open=nodes)

"""Beam search that scores a branch by where it leads: after some greedy steps (arXiv 2408.03314, lookahead search)."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_count
from search.allocation import allocate_to_best
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategy import Resources, SearchResult
from search.tree import SearchTree
from search.voting import fill_unscored


@dataclass(frozen=True, kw_only=True)
class LookaheadBeam(StepSearch):
    """Continues the best `n / beam_width` branches of each level, by their scores after `lookahead` further steps.

    These steps are written at temperature 0, cost tokens and are not used again: branches are continued from where they
    were, and what was finished on the way is a candidate only where the budget ends with it.

    beam_width  continuations of each branch that is kept
    lookahead   greedy steps behind each branch; 0 is beam search
    """

    beam_width: int = 4
    lookahead: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("beam_width", self.beam_width, at_least=1)
        require_count("lookahead", self.lookahead, at_least=0)
        if self.beam_width > self.n:
            raise ValueError(f"beam_width must be at most n={self.n}, got {self.beam_width}")

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        parents = [SearchTree.ROOT] * self.n
        while True:
            nodes = await state.expand_nodes(parents, lambda _: self.n - state.num_closed)
            width = self.n - state.num_closed
            if not nodes or state.update_decided(width):
                break
            ends = await state.look_ahead(nodes, self.lookahead)
            if state.expander.stop_reason == "budget":
                nodes = ends  # further on, perhaps with an answer
                break
            scores = fill_unscored([state.tree.path_score(end, self.agg_strategy) for end in ends])
            num_kept = -(-width // self.beam_width)  # rounded up
            widths = allocate_to_best(scores, width, num_kept)
            state.record_decision(nodes, widths)
            parents = [node for node, count in zip(nodes, widths, strict=True) for _ in range(count)]
        return state.build_result(still_open=nodes)

"""Sequential halving: best-of-N that gives up the worse half of its open paths at each rung (Karnin et al. 2013)."""

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
class SequentialHalving(StepSearch):
    """Writes `n` paths side by side; at the end of each rung the better half of those still open goes on.

    Each rung has the same budget, `n * rung_steps` steps, for half as many paths as the one before, which are therefore
    twice as long in it. The last path is written to its end. Paths that finish meanwhile are candidates.

    n           number of paths at the start
    rung_steps  steps of each path in the first rung
    """

    select: str = "best"
    rung_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("rung_steps", self.rung_steps, at_least=1)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        paths, steps_left, num_given_up = [SearchTree.ROOT] * self.n, self.rung_steps, 0

        def count_remaining(num_pending: int) -> float:
            del num_pending  # all paths that were neither closed nor given up have their vote to come
            return self.n - state.num_closed - num_given_up

        while True:
            paths = await state.expand_nodes(paths, count_remaining)
            if not paths or state.expander.stop_reason == "budget" or state.update_decided(len(paths)):
                break
            widths, steps_left = [1] * len(paths), steps_left - 1
            if not steps_left:
                num_kept = (len(paths) + 1) // 2
                scores = fill_unscored([state.tree.path_score(node, self.agg_strategy) for node in paths])
                widths = allocate_to_best(scores, num_kept, num_kept)
                steps_left = max(1, self.n * self.rung_steps // num_kept)
                num_given_up += len(paths) - num_kept
            state.record_decision(paths, widths)
            paths = [node for node, width in zip(paths, widths, strict=True) if width]
        return state.build_result(still_open=paths)

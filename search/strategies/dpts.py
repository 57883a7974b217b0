"""Dynamic parallel tree search: good paths are followed, weak ones stop early, others get a try (arXiv 2502.16235)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from decoding.core import Tokens
from decoding.validation import require_count, require_not_negative, require_share
from search.expansion_batch import ExpansionBatch
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategies.dpts_rules import PathStats, count_new_exploits, count_paths, stays_in_focus, upper_bound
from search.strategy import Resources, SearchResult
from search.tree import SearchTree

UNSCORED = 0.5
"""Value of a path without a score."""


@dataclass(frozen=True, kw_only=True)
class Dpts(StepSearch):
    """Continues up to `parallel` paths at a time, each by `branching` steps, and follows the best of these steps.

    The paths in focus are those of exploitation. What is left of `parallel` goes to other open paths of the tree, by
    their upper bounds: the best of these begin as exploitation too, up to `exploit_share` of all, the others explore.
    After every step a path of exploitation that became weak stops early, and one of exploration that became strong
    comes into focus. Paths that are left may be taken up again.

    n              solutions after which the search ends
    enough         solutions after which it also ends where no path in focus is better than the best of them; None: `n`
    parallel       most paths that are continued at a time
    kv_tokens      KV tokens that these may need: fewer go on together where paths are long; None: no limit
    branching      continuations of each path
    exploit_share  share of the paths that exploit
    stop_share     share of the mean value of the paths followed so far at which exploitation stops
    seek_share     share of it at which exploration becomes exploitation
    exploration    exploration constant of the upper bound
    expansions     most paths that are expanded; the best are then written to their ends, for `n` solutions in all
    normalise      `rank`, or `none` as published; values are among those of the same depth
    """

    n: int = 16
    normalise: str = "rank"
    enough: int | None = 5
    parallel: int = 4
    kv_tokens: int | None = None
    branching: int = 4
    exploit_share: float = 0.5
    stop_share: float = 0.8
    seek_share: float = 0.8
    exploration: float = 0.7071
    expansions: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise not in ("none", "rank"):
            raise ValueError(
                f"normalise must be none or rank in dpts, whose values are from 0 to 1; got {self.normalise}"
            )
        for name in ("parallel", "branching", "expansions"):
            require_count(name, getattr(self, name), at_least=1)
        for name in ("enough", "kv_tokens"):
            require_count(name, getattr(self, name), at_least=1, or_null=True)
        require_share("exploit_share", self.exploit_share)
        for name in ("stop_share", "seek_share", "exploration"):
            require_not_negative(name, getattr(self, name))

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        focus = Focus(self, StepSearchState(root, resources, self))
        while focus.choose_paths() and await focus.continue_paths():
            pass
        await focus.finish_paths()
        return focus.state.build_result(still_open=focus.find_still_open())


@dataclass
class Focus:
    """The paths of one search: those in focus, the other open ones, and the statistics of their nodes.

    exploits   nodes in focus that exploitation follows, in the order in which they came
    explores   nodes that get one step as exploration
    waiting    other open nodes
    followed   values of the paths that were followed so far
    """

    strategy: Dpts
    state: StepSearchState
    exploits: list[int] = field(default_factory=list)
    explores: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=lambda: [SearchTree.ROOT])
    followed: list[float] = field(default_factory=list)
    num_expanded: int = 0

    def __post_init__(self) -> None:
        self.stats = {SearchTree.ROOT: PathStats(UNSCORED)}
        self._above: dict[int, int] = {}  # node -> node that was continued to it; of merged ones, their representative
        self._best_solution: float | None = None

    def choose_paths(self) -> bool:
        """Fills the places beside the paths in focus; returns whether the search goes on. *Mutates*."""
        strategy, state = self.strategy, self.state
        missing = strategy.n - len(state.ended_nodes)
        if missing <= 0 or state.update_decided(self._max_votes_to_come()) or state.expander.stop_reason == "budget":
            return False
        preferred = [*self._by_value(self.exploits), *sorted(self.waiting, key=self._rank_waiting)]
        lengths = [0 if node == SearchTree.ROOT else state.tree.nodes[node].num_path_tokens for node in preferred]
        width = count_paths(strategy.parallel, strategy.kv_tokens, lengths)
        width = min(width, strategy.expansions - self.num_expanded)
        for weakest in self._by_value(self.exploits)[width:]:  # paths have grown, or the search is at its end
            self.exploits.remove(weakest)
            self.waiting.append(weakest)
        chosen = sorted(self.waiting, key=self._rank_waiting)[: width - len(self.exploits)]
        new = self._by_value(chosen)[: count_new_exploits(width, strategy.exploit_share, len(self.exploits))]
        self.waiting = [node for node in self.waiting if node not in chosen]
        self.exploits += new
        self.explores = [node for node in chosen if node not in new]
        in_focus = [*self.exploits, *self.explores]
        return bool(in_focus) and not self._is_behind(in_focus)

    async def continue_paths(self) -> bool:
        """Continues the chosen paths by one step; returns whether the budget allowed it. *Mutates*."""
        chosen, exploits = [*self.exploits, *self.explores], set(self.exploits)
        self._record(chosen)
        self.exploits, self.explores = [], []
        running: deque[tuple[int, ExpansionBatch]] = deque()
        for at, node in enumerate(chosen):
            batch = self.state.start_batch([node] * self.strategy.branching)
            while not batch and running:  # the budget may afford it once a running one is collected
                await self._collect(*running.popleft(), exploits)
                batch = self.state.start_batch([node] * self.strategy.branching)
            if not batch:
                self.exploits += [left for left in chosen[at:] if left != SearchTree.ROOT]
                return False
            self.num_expanded += 1
            running.append((node, batch))
        while running and not self.state.update_decided(self._max_votes_to_come()):
            await self._collect(*running.popleft(), exploits)
        self.state.expander.cancel_pending()
        return True

    def _max_votes_to_come(self) -> int:
        """Returns the most solutions that may still end: every step of the last paths may be one, beyond `n`."""
        missing = self.strategy.n - len(self.state.ended_nodes)
        return max(0, missing - 1) + self.strategy.parallel * self.strategy.branching

    async def finish_paths(self) -> None:
        """Writes the best open paths to their ends where no more may be expanded, for `n` solutions. *Mutates*."""
        if self.num_expanded < self.strategy.expansions or self.state.is_decided:
            return
        missing = self.strategy.n - len(self.state.ended_nodes)
        best = self._by_value([node for node in (*self.exploits, *self.waiting) if node != SearchTree.ROOT])
        best = best[: max(0, missing)]
        left = await self.state.finish_solutions(best)
        self.exploits = [node for node in self.exploits if node not in best] + left
        self.waiting = [node for node in self.waiting if node not in best]

    def find_still_open(self) -> list[int]:
        """Returns the open paths that vote: where the budget ended, those with an answer."""
        state = self.state
        if state.is_out_of_budget:
            return state.keep_answered(node for node in (*self.exploits, *self.waiting) if node != SearchTree.ROOT)
        return [] if state.ended_nodes else self.exploits  # what is open is better than no answer at all

    async def _collect(self, node: int, batch: ExpansionBatch, exploits: set[int]) -> None:
        """Adds the steps behind a node, and follows the best of them where its value allows. *Mutates*."""
        num_ended = len(self.state.ended_nodes)
        open_leaves = await self.state.collect_batch(batch)
        ended = self.state.ended_nodes[num_ended:]  # the node itself where nothing was written behind it
        for leaf in [*open_leaves, *(leaf for leaf in ended if leaf != node)]:
            self.stats[leaf], self._above[leaf] = PathStats(self._find_value(leaf)), node
        for leaf in ended:
            self._back_up(leaf)
        best = self._by_value(open_leaves)[:1]
        if best and self._is_followed(self.stats[best[0]].value, ended, exploits=node in exploits):
            self.exploits += best
            self.followed.append(self.stats[best[0]].value)
        self.waiting += [leaf for leaf in open_leaves if leaf not in self.exploits]

    def _is_followed(self, value: float, ended: list[int], *, exploits: bool) -> bool:
        """Whether a path goes on with a step of this value; not where another step, a solution, is better."""
        stop_share, seek_share = self.strategy.stop_share, self.strategy.seek_share
        return value >= self._best_of(ended) and stays_in_focus(
            value, self.followed, exploits=exploits, stop_share=stop_share, seek_share=seek_share
        )

    def _back_up(self, leaf: int) -> None:
        """Adds the value of a solution to its node and to all above. *Mutates*."""
        value, node = self.stats[leaf].value, leaf
        self._best_solution = max(value, self._best_solution or 0.0)
        while True:
            stats = self.stats[node]
            stats.total, stats.solutions = stats.total + value, stats.solutions + 1
            if node == SearchTree.ROOT:
                return
            node = self._above[node]

    def _best_of(self, nodes: list[int]) -> float:
        return max((self.stats[node].value for node in nodes), default=0.0)

    def _is_behind(self, nodes: list[int]) -> bool:
        """Whether there are enough solutions, and one of them is better than all these paths."""
        enough = self.strategy.enough
        if enough is None or len(self.state.ended_nodes) < enough or self._best_solution is None:
            return False
        return self._best_of(nodes) < self._best_solution

    def _find_value(self, node: int) -> float:
        value = self.state.find_value(node)
        return UNSCORED if value is None else value

    def _by_value(self, nodes: list[int]) -> list[int]:
        """The nodes in order of falling value, the first of equals first."""
        return sorted(nodes, key=lambda node: -self.stats[node].value)

    def _rank_waiting(self, node: int) -> float:
        above = self.stats[self._above.get(node, SearchTree.ROOT)]
        return -upper_bound(self.stats[node], above, self.strategy.exploration)

    def _record(self, chosen: list[int]) -> None:
        nodes = [node for node in (*chosen, *self.waiting) if node != SearchTree.ROOT]
        if nodes:
            widths = [self.strategy.branching if node in chosen else 0 for node in nodes]
            self.state.record_decision(nodes, widths)

"""Monte Carlo tree search over steps; the reward model scores the nodes that no simulation has visited."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_choice, require_count, require_not_negative, require_positive
from search.expansion_batch import ExpansionBatch
from search.open_paths import OpenPaths
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategies.mcts_rules import SELECTION_RULES, ChildStats, max_children, select_child
from search.strategy import Resources, SearchResult
from search.tree import SearchTree

VALUES = ("prm", "rollout")


@dataclass(frozen=True, kw_only=True)
class Mcts(StepSearch):
    """Runs `n` simulations; each descends to a finished solution and backs its score up to all nodes on its path.

    At a node, a simulation first adds the children that progressive widening allows, then descends to the child with
    the highest upper bound. Below the known nodes, `value` determines how it reaches the end: `prm` continues in the
    same way and takes the child with the highest score at every step (as in OpenR); `rollout` generates the rest of the
    solution in one request.

    No leaf ends two simulations: an explored leaf is left out, and its parent may have another child. Up to `parallel`
    simulations run at a time; virtual losses separate them. They resume in the order in which they began to wait, not
    of completion, so that the tree does not depend on timing.

    n                 number of simulations
    rule              rule of the upper bound: `uct` or `puct`
    exploration       exploration constant of the rule; 1.0 in LLM-reasoners, for values that differ more
    normalise         `rank`, or `none` as published; values are among those of the same depth when they are backed up
    value             `prm` or `rollout`
    branching         maximum children of a node
    widening, widening_power   a node visited N times may have widening * (1 + N) ** widening_power children
    parallel          concurrent simulations; 1 is the textbook's
    """

    n: int = 16
    rule: str = "uct"
    exploration: float = 0.1
    normalise: str = "rank"
    value: str = "prm"
    branching: int = 8
    widening: float = 4.0
    widening_power: float = 0.5
    parallel: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("rule", self.rule, SELECTION_RULES)
        require_choice("value", self.value, VALUES)
        if self.normalise not in ("none", "rank"):
            raise ValueError(
                f"normalise must be none or rank in mcts, whose values are from 0 to 1; got {self.normalise}"
            )
        require_not_negative("exploration", self.exploration)
        require_positive("widening", self.widening)
        require_not_negative("widening_power", self.widening_power, at_most=10)  # 1: one child more with every visit
        for name in ("branching", "parallel"):
            require_count(name, getattr(self, name), at_least=1)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        return await SimulationRunner(self, StepSearchState(root, resources, self)).run_all()


@dataclass
class Simulation:
    """Path of one simulation down the tree.

    path        nodes from the prompt to the current node
    batch       children that the simulation waits for; None if it waits for those of another simulation, or not at all
    is_rollout  whether `batch` is the rest of the solution
    """

    path: list[int]
    batch: ExpansionBatch | None = None
    is_rollout: bool = False


class SimulationRunner:
    """Runs the simulations of one search and holds their statistics.

    stats          per node, statistics of its visits
    children       per node, its children in the tree
    num_requested  per node, children requested so far
    num_pending    per node, requested children that are still being generated
    explored       nodes below which there is nothing new
    """

    def __init__(self, strategy: Mcts, state: StepSearchState) -> None:
        self.strategy, self.state = strategy, state
        self.stats: dict[int, ChildStats] = {SearchTree.ROOT: ChildStats()}
        self.children: dict[int, list[int]] = {}
        self.num_requested: Counter[int] = Counter()
        self.num_pending: Counter[int] = Counter()
        self.explored: set[int] = set()
        self._waiting: deque[Simulation] = deque()
        self._open_paths = OpenPaths(state.tree)
        self._gave_up = False

    async def run_all(self) -> SearchResult:
        """Runs all simulations, or as many as budget and early stop allow."""
        num_started, n = 0, self.strategy.n
        while True:
            while num_started < n and len(self._waiting) < self.strategy.parallel and not self._is_exhausted:
                num_started += 1
                self.stats[SearchTree.ROOT].virtual_losses += 1
                self._advance(Simulation([SearchTree.ROOT]))
            if not self._waiting or self.state.update_decided(n - num_started + len(self._waiting)):
                break
            await self._resume(self._waiting.popleft())
        self.state.expander.cancel_pending()
        if not self.state.is_out_of_budget:
            return self.state.build_result()
        return self.state.build_result(still_open=self.state.keep_answered(self._open_leaves()))

    def _open_leaves(self) -> list[int]:
        """Returns the nodes that can be continued and have not been."""
        return [
            node
            for node in self.stats
            if node != SearchTree.ROOT
            and node not in self.children
            and self.state.is_open(node)
            and not self.state.has_ended(node)
        ]

    @property
    def _is_exhausted(self) -> bool:
        return self._gave_up or SearchTree.ROOT in self.explored

    async def _resume(self, simulation: Simulation) -> None:
        """Continues a simulation once the children that it waits for are generated."""
        batch, simulation.batch = simulation.batch, None
        if batch is not None:
            num_ended = len(self.state.ended_nodes)
            # Open and ended children, in the order of their node numbers, so that ties between them are stable.
            new = sorted({*await self.state.collect_batch(batch), *self.state.ended_nodes[num_ended:]})
            node = simulation.path[-1]
            self.num_pending[node] -= batch.num_asked
            if simulation.is_rollout:
                for leaf in new:
                    self._follow_rollout(simulation, leaf)
                return self._back_up(simulation)
            self._add_children(node, [child for child in new if child != node])
        return self._advance(simulation)

    def _advance(self, simulation: Simulation) -> None:
        """Descends from the current node until the simulation has to wait or reaches an end."""
        while simulation.path:
            node = simulation.path[-1]
            if node != SearchTree.ROOT and (self.state.has_ended(node) or not self.state.is_open(node)):
                return self._back_up(simulation)
            simulation.is_rollout = self._needs_rollout(node)  # it may have been visited while this one waited
            if simulation.is_rollout:
                return self._wait(simulation, self.state.start_solution(node))
            children = self._unexplored_children(node)
            if num_missing := self._num_missing(node, has_children=bool(children)):
                return self._wait(simulation, self.state.start_batch([node] * num_missing))
            if children:
                self._descend(simulation, children)
            elif self.num_pending[node]:
                return self._wait(simulation, None)
            else:  # nothing new below it: one step up, where another child may be selected
                self.explored.add(node)
                self.stats[simulation.path.pop()].virtual_losses -= 1
        return None

    def _needs_rollout(self, node: int) -> bool:
        """With `value=rollout`, the first visit to a node generates the rest; the prompt is always expanded first."""
        # The virtual loss of this simulation is already counted, so a first visit has num_visits 1.
        return self.strategy.value == "rollout" and node != SearchTree.ROOT and self.stats[node].num_visits == 1

    def _num_missing(self, node: int, *, has_children: bool) -> int:
        """Children to request: those that widening allows, and one more where there are no unexplored ones."""
        strategy, requested = self.strategy, self.num_requested[node]
        num_visits = self.stats[node].num_visits - 1  # without this simulation
        allowed = max_children(num_visits, strategy.widening, strategy.widening_power, strategy.branching)
        if not self.num_pending[node] and not has_children:
            allowed = max(allowed, min(requested + 1, strategy.branching))
        return max(0, allowed - requested)

    def _unexplored_children(self, node: int) -> list[int]:
        return [child for child in self.children.get(node, []) if child not in self.explored]

    def _wait(self, simulation: Simulation, batch: ExpansionBatch | None) -> None:
        """Queues a simulation until its batch, or that of another simulation, is complete; or gives it up."""
        node = simulation.path[-1]
        if batch:
            simulation.batch = batch
            self.num_requested[node] += batch.num_asked
            self.num_pending[node] += batch.num_asked
            if node != SearchTree.ROOT:
                self.state.record_decision([node], [batch.num_asked], still_open=self._open_paths)
        elif not any(other.batch for other in self._waiting):
            # The budget affords nothing, and no batch is pending whose commit could change that.
            self._gave_up = True
            for node in simulation.path:
                self.stats[node].virtual_losses -= 1
            return
        self._waiting.append(simulation)

    def _descend(self, simulation: Simulation, children: Sequence[int]) -> None:
        stats = [self.stats[child] for child in children]
        self._enter_child(simulation, children[select_child(stats, self.strategy.rule, self.strategy.exploration)])

    def _enter_child(self, simulation: Simulation, child: int) -> None:
        self.stats[child].virtual_losses += 1
        simulation.path.append(child)

    def _add_children(self, parent: int, nodes: Sequence[int]) -> None:
        tree = self.state.tree
        for node in nodes:
            if node not in self.stats and self.state.is_open(node):  # and stays so: it may be continued later
                self._open_paths.add(node)
            self.stats[node] = stats = ChildStats(initial_value=self.state.find_value(node))
            if self.strategy.rule == "puct":
                stats.prior = math.exp(tree.nodes[node].step.mean_logprob or 0.0)
        self.children.setdefault(parent, []).extend(nodes)

    def _follow_rollout(self, simulation: Simulation, leaf: int) -> None:
        """Adds the chain of a rollout to the statistics and descends along it."""
        path = self.state.tree.path_nodes(leaf)
        for child in path[path.index(simulation.path[-1]) + 1 :]:
            self._add_children(simulation.path[-1], [child])
            self._enter_child(simulation, child)

    def _back_up(self, simulation: Simulation) -> None:
        """Ends a simulation: adds the score of its leaf to all nodes on its path and removes its virtual losses."""
        leaf = simulation.path[-1]
        # A leaf without a score counts as no success: half of one would draw simulations where scores are low.
        value = self.state.find_value(leaf) or 0.0
        for node in simulation.path:
            stats = self.stats[node]
            stats.virtual_losses -= 1  # the virtual visit becomes a real one: num_visits stays the same
            stats.visits += 1
            stats.total_value += value
        self.explored.add(leaf)

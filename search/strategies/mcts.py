"""Monte Carlo tree search over steps, with the reward model's word for what has not been tried yet."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_choice, require_count, require_not_negative, require_positive
from search.expand import Growth
from search.step_search import TreeSearch
from search.step_search_state import Walk
from search.strategies.mcts_rules import RULES, Arm, best_arm, children_wanted
from search.strategy import Resources, SearchResult
from search.tree import SearchTree

VALUES = ("prm", "rollout")


@dataclass(frozen=True, kw_only=True)
class Mcts(TreeSearch):
    """`n` simulations; each goes down the tree to a finished solution, and its score is told to every node on the way.

    At a node a simulation first adds the children that progressive widening allows, then goes on to the child with the
    highest upper bound. Below the nodes that were there, `value` says how the end is reached: `prm` goes on in the same
    way, choosing the best scored of fresh children at every step (as in OpenR); `rollout` lets the writer finish.

    A simulation never ends twice at the same leaf: what has been seen to its end is left out, and its parent may have
    another child. Up to `parallel` simulations are under way; virtual losses keep them apart. They are taken up in the
    order in which they began to wait, whoever is done first, so that the tree does not depend on timing.

    n                 simulations
    rule, exploration `uct` or `puct`, and its constant; 1.0 as in LLM-reasoners
    value             `prm` or `rollout`
    branching         children of a node at most
    widening, widening_power   a node visited N times may have widening * (1 + N) ** widening_power children
    parallel          simulations under way at once; 1 is the textbook's
    """

    n: int = 16
    rule: str = "uct"
    exploration: float = 1.0
    value: str = "prm"
    branching: int = 4
    widening: float = 2.0
    widening_power: float = 0.5
    parallel: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("rule", self.rule, RULES)
        require_choice("value", self.value, VALUES)
        require_not_negative("exploration", self.exploration)
        require_positive("widening", self.widening)
        require_not_negative("widening_power", self.widening_power)
        for name in ("branching", "parallel"):
            require_count(name, getattr(self, name), at_least=1)

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        return await Simulations(self, Walk(root, resources, self)).run()


@dataclass
class Simulation:
    """A way down the tree; `growth` is what it waits for, if anything, and `rollout` says it is the last of it."""

    path: list[int]
    growth: Growth | None = None
    rollout: bool = False


class Simulations:
    """The simulations of one search, and what they found out.

    asked     per node, children asked for so far
    awaited   of these, how many are still being written
    explored  nodes below which there is nothing new
    """

    def __init__(self, knobs: Mcts, walk: Walk) -> None:
        self.knobs, self.walk = knobs, walk
        self.arms: dict[int, Arm] = {SearchTree.ROOT: Arm()}
        self.children: dict[int, list[int]] = {}
        self.asked: Counter[int] = Counter()
        self.awaited: Counter[int] = Counter()
        self.explored: set[int] = set()
        self._waiting: deque[Simulation] = deque()
        self._gave_up = False

    async def run(self) -> SearchResult:
        """All of them, or as many as budget and early stop allow."""
        begun = 0
        while True:
            while begun < self.knobs.n and len(self._waiting) < self.knobs.parallel and not self._at_an_end:
                begun += 1
                self.arms[SearchTree.ROOT].losses += 1
                self._go_on(Simulation([SearchTree.ROOT]))
            if not self._waiting or self.walk.decided(self.knobs.n - begun + len(self._waiting)):
                break
            await self._take_up(self._waiting.popleft())
        self.walk.run.cancel()
        return self.walk.conclude()

    @property
    def _at_an_end(self) -> bool:
        return self._gave_up or SearchTree.ROOT in self.explored

    async def _take_up(self, simulation: Simulation) -> None:
        """Lets a simulation go on with what it waited for."""
        growth, simulation.growth = simulation.growth, None
        if growth is not None:
            before = len(self.walk.ended)
            new = sorted({*await self.walk.collect(growth), *self.walk.ended[before:]})
            node = simulation.path[-1]
            self.awaited[node] -= len(growth)
            if simulation.rollout:
                for leaf in new:
                    self._follow(simulation, leaf)
                return self._arrive(simulation)
            self._add_children(node, [child for child in new if child != node])
        return self._go_on(simulation)

    def _go_on(self, simulation: Simulation) -> None:
        """Down from where it stands, to where it has to wait or is at an end."""
        while simulation.path:
            node = simulation.path[-1]
            if node != SearchTree.ROOT and (node in self.walk.ended or not self.walk.is_open(node)):
                return self._arrive(simulation)
            if self._wants_rollout(node):
                simulation.rollout = True
                return self._wait(simulation, self.walk.launch_solution(node))
            if missing := self._missing(node):
                return self._wait(simulation, self.walk.launch([node] * missing))
            if self._fresh(node):
                self._descend(simulation)
            elif self.awaited[node]:
                return self._wait(simulation, None)
            else:  # nothing new below it: back up a step, and elsewhere
                self.explored.add(node)
                self.arms[simulation.path.pop()].losses -= 1
        return None

    def _wants_rollout(self, node: int) -> bool:
        """With `value=rollout`, a node nobody has been to is finished by the writer; the prompt is expanded first."""
        return self.knobs.value == "rollout" and node != SearchTree.ROOT and self.arms[node].tries == 1

    def _missing(self, node: int) -> int:
        """Children to ask for: what widening allows, and one more where all that have come are explored."""
        knobs, asked = self.knobs, self.asked[node]
        tries = self.arms[node].tries - 1  # this simulation is one of them
        wanted = children_wanted(tries, knobs.widening, knobs.widening_power, knobs.branching)
        if not self.awaited[node] and not self._fresh(node):
            wanted = max(wanted, min(asked + 1, knobs.branching))
        return max(0, wanted - asked)

    def _fresh(self, node: int) -> list[int]:
        return [child for child in self.children.get(node, []) if child not in self.explored]

    def _wait(self, simulation: Simulation, growth: Growth | None) -> None:
        """Puts a simulation at the end of the line, for its growth or for that of another; or gives it up."""
        node = simulation.path[-1]
        if growth:
            simulation.growth = growth
            self.asked[node] += len(growth)
            self.awaited[node] += len(growth)
            if node != SearchTree.ROOT:
                self.walk.note([node], [len(growth)], still_open=self._open_nodes())
        elif not any(other.growth for other in self._waiting):
            self._gave_up = True  # the budget grants nothing, and nothing is under way that could change that
            for node in simulation.path:
                self.arms[node].losses -= 1
            return
        self._waiting.append(simulation)

    def _descend(self, simulation: Simulation) -> None:
        children = self._fresh(simulation.path[-1])
        best = best_arm([self.arms[child] for child in children], self.knobs.rule, self.knobs.exploration)
        self._step_to(simulation, children[best])

    def _step_to(self, simulation: Simulation, child: int) -> None:
        self.arms[child].losses += 1
        simulation.path.append(child)

    def _add_children(self, parent: int, nodes: Sequence[int]) -> None:
        tree = self.walk.tree
        for node in nodes:
            likely, score = tree.nodes[node].step.mean_logprob, tree.score(node, self.knobs.agg_strategy)
            self.arms[node] = Arm(first=score, prior=math.exp(likely or 0.0))
        self.children.setdefault(parent, []).extend(nodes)

    def _follow(self, simulation: Simulation, leaf: int) -> None:
        """The chain the writer wrote becomes part of the tree that simulations walk."""
        path = self.walk.tree.path(leaf)
        for child in path[path.index(simulation.path[-1]) + 1 :]:
            self._add_children(simulation.path[-1], [child])
            self._step_to(simulation, child)

    def _arrive(self, simulation: Simulation) -> None:
        """A simulation is at an end of the tree: what it is worth is told to every node on its way."""
        leaf = simulation.path[-1]
        score = self.walk.tree.score(leaf, self.knobs.agg_strategy)
        value = self.arms[leaf].mean if score is None else score
        for node in simulation.path:
            arm = self.arms[node]
            arm.losses, arm.visits, arm.total = arm.losses - 1, arm.visits + 1, arm.total + value
        self.explored.add(leaf)

    def _open_nodes(self) -> list[int]:
        """Every branch a simulation may come back to."""
        return [node for node in self.arms if node != SearchTree.ROOT and self.walk.is_open(node)]

"""TreePO's sampler: solutions that share their beginnings, as one tree of segments (arXiv 2508.17445)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Tokens
from decoding.validation import require_choice, require_count, require_positive, require_switch
from search.allocation import allocate_by_softmax
from search.open_paths import OpenPaths
from search.seeds import derive_seed
from search.step_search import StepSearch
from search.step_search_state import StepSearchState
from search.strategy import Resources, SearchResult
from search.tree import SearchTree
from search.voting import TOURNAMENT

SPLITS = ("even", "confident", "uncertain")
REWINDS = ("random", "least_likely")


@dataclass(frozen=True)
class PathGroup:
    """Open branches that grow together, and the number of solutions that they lead to."""

    nodes: tuple[int, ...]
    num_solutions: int


@dataclass(frozen=True, kw_only=True)
class TreePo(StepSearch):
    """Grows `n` solutions segment by segment; the number of branches grows with every level until it is `n`.

    A branch that has ended passes its share on. Where all have ended before there are `n` solutions, the rest begins
    anew at segments of ended paths. `step=fixed_length` makes the segments of the paper.

    With `group_size` the tree grows depth-first, in groups of paths: one group goes to its end while the branches of
    the others wait. So the first solutions are there early, and where they decide the vote (`early_stop`), or the
    budget ends, nothing was spent on the others but the segments at which they part.

    n               solutions in the end
    first_width     branches below the prompt
    branching       how many times the number of branches may grow per level
    split           what decides which branches get more than one continuation: `even`, or the mean log-probability of
                    the last segment, where it is high (`confident`) or low (`uncertain`)
    temperature     of the softmax over these log-probabilities
    group_size      solutions that grow at the same time; 1 follows one path, None grows all level by level
    rewind          whether missing solutions begin anew at segments of ended paths; False: there are fewer
    rewind_to       which segment of a path that is: a `random` one, or the one with the `least_likely` token
    max_repeats     a branch whose path ends with this many copies of one block of tokens ends; None: never
    stop_at_answer  whether a branch ends with the segment in which it gave an answer, for models that go on after it

    The paper ends branches for both of the last reasons. By default neither does: a thought that repeats itself may
    still answer.
    """

    first_width: int = 2
    branching: int = 2
    split: str = "even"
    temperature: float = 1.0
    group_size: int | None = None
    rewind: bool = True
    rewind_to: str = "random"
    max_repeats: int | None = None
    stop_at_answer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("first_width", self.first_width, at_least=1)
        require_count("branching", self.branching, at_least=1)
        require_choice("split", self.split, SPLITS)
        require_positive("temperature", self.temperature)
        require_count("group_size", self.group_size, at_least=1, or_null=True)
        require_switch("rewind", self.rewind)
        require_choice("rewind_to", self.rewind_to, REWINDS)
        require_count("max_repeats", self.max_repeats, at_least=2, or_null=True)
        require_switch("stop_at_answer", self.stop_at_answer)

    @property
    def needs_scorer(self) -> bool:  # type: ignore[override]
        """Whether votes depend on scores; branches do not."""
        return self.select not in ("majority", TOURNAMENT)

    @property
    def needs_logprobs(self) -> bool:
        """Whether branches split, or begin anew, by log-probabilities."""
        return self.split != "even" or (self.rewind and self.rewind_to == "least_likely")

    async def __call__(self, root: Tokens, resources: Resources) -> SearchResult:
        state = StepSearchState(root, resources, self)
        rng = random.Random(derive_seed(resources.seed, "rewind"))
        parents = [SearchTree.ROOT] * min(self.first_width, self.n)
        nodes: list[int] = []
        waiting: list[PathGroup] = []  # the next one last
        while parents:
            nodes = self._end_early(state, await state.expand_nodes(parents, lambda _: self.n - state.num_closed))
            missing = self.n - state.num_closed
            if state.expander.stop_reason == "budget" or state.update_decided(missing):
                break
            if nodes:  # they also have the shares of the branches that have ended
                waiting += self._divide(state.tree, nodes, missing - _count_solutions(waiting))[::-1]
            if waiting:
                parents = self._continue_group(state, waiting.pop(), waiting)
            else:
                parents = self._rewind(state, min(missing, self.group_size or missing), rng) if self.rewind else []
        # a branch that waits is no solution, unless it has an answer already
        answered = [node for group in waiting for node in group.nodes if state.find_answer(node) is not None]
        return state.build_result(still_open=[*nodes, *answered])

    def _divide(self, tree: SearchTree, nodes: Sequence[int], num_solutions: int) -> list[PathGroup]:
        """Divides open branches into groups of at most `group_size` solutions; a branch that leads to more is alone."""
        if self.group_size is None or num_solutions <= self.group_size:
            return [PathGroup(tuple(nodes), num_solutions)]
        groups: list[PathGroup] = []
        for node, share in zip(nodes, self._split(tree, nodes, num_solutions), strict=True):
            last = groups[-1] if groups else None
            if last is not None and last.num_solutions + share <= self.group_size:
                groups[-1] = PathGroup((*last.nodes, node), last.num_solutions + share)
            else:
                groups.append(PathGroup((node,), share))
        return groups

    def _continue_group(self, state: StepSearchState, group: PathGroup, waiting: Sequence[PathGroup]) -> list[int]:
        """Returns the parents of the next segments of a group, in order. *Mutates* the records of the search."""
        nodes = group.nodes
        widths = self._split(state.tree, nodes, min(group.num_solutions, self.branching * len(nodes)))
        still_open = OpenPaths(state.tree)
        for node in (node for other in waiting for node in other.nodes):
            still_open.add(node)
        state.record_decision(nodes, widths, still_open=still_open)
        return [node for node, count in zip(nodes, widths, strict=True) for _ in range(count)]

    def _split(self, tree: SearchTree, nodes: Sequence[int], width: int) -> list[int]:
        """Returns the number of continuations of each branch, `width` in all, but at least one each."""
        sign = {"even": 0.0, "confident": 1.0, "uncertain": -1.0}[self.split]
        logprobs = [tree.nodes[node].step.mean_logprob for node in nodes]
        known = [logprob for logprob in logprobs if logprob is not None]
        # a segment that was put in has none; it is neither confident nor uncertain
        mean = math.fsum(known) / len(known) if known else 0.0
        scores = [sign * (mean if logprob is None else logprob) for logprob in logprobs]
        return [1 + more for more in allocate_by_softmax(scores, max(0, width - len(nodes)), self.temperature)]

    def _end_early(self, state: StepSearchState, nodes: Sequence[int]) -> list[int]:
        """Ends branches that have an answer or repeat themselves; returns the others. *Mutates*."""

        def is_over(node: int) -> bool:
            if self.stop_at_answer and state.find_answer(node) is not None:
                return True
            return self.max_repeats is not None and _is_repetitive(_path_tokens(state.tree, node), self.max_repeats)

        ended = {node for node in nodes if is_over(node)}
        state.end_branches(sorted(ended))
        return [node for node in nodes if node not in ended]

    def _rewind(self, state: StepSearchState, count: int, rng: random.Random) -> list[int]:
        """Draws `count` ended paths and returns for each the beginning of the segment that is written anew."""
        if not state.ended_nodes:
            return []
        paths = [state.tree.path_nodes(rng.choice(state.ended_nodes)) for _ in range(count)]
        if self.rewind_to == "random":
            return [rng.choice([SearchTree.ROOT, *path[:-1]]) for path in paths]
        return [_find_least_likely(state.tree, path) for path in paths]


def _count_solutions(groups: Sequence[PathGroup]) -> int:
    return sum(group.num_solutions for group in groups)


def _find_least_likely(tree: SearchTree, path: Sequence[int]) -> int:
    """Returns the node before the segment with the least likely token of a path, the first of equals; the prompt where
    no log-probability is known."""
    known = [node for node in path if tree.nodes[node].step.logprobs]
    least = min(known, key=lambda node: min(tree.nodes[node].step.logprobs), default=None)
    return SearchTree.ROOT if least is None else tree.nodes[least].parent


def _path_tokens(tree: SearchTree, node: int) -> list[int]:
    return [token for step in tree.path_steps(node) for token in step.tokens]


def _is_repetitive(tokens: Sequence[int], repeats: int) -> bool:
    """Whether the tokens end with `repeats` copies of one block.

    >>> _is_repetitive([5, 1, 2, 1, 2, 1, 2], 3), _is_repetitive([5, 1, 2, 1, 2, 1, 2], 4), _is_repetitive([7, 7], 2)
    (True, False, True)
    """
    longest = len(tokens) // repeats
    return any(
        all(tokens[-i] == tokens[-i - size] for i in range(1, size * (repeats - 1) + 1))
        for size in range(1, longest + 1)
    )

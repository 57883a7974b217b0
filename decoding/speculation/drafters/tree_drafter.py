"""A drafter made of a source: grows trees from it, and learns which of its guesses come true.

Shapes: N nodes of all drafts of a round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from decoding.speculation.drafters.best_first import Grown
from decoding.speculation.drafters.calibration import Calibration
from decoding.speculation.drafters.child_selection import CODES
from decoding.speculation.drafters.source import Floats, Ints, Source
from decoding.speculation.drafters.tree_builder import Knobs, Level, Tabled, from_table, grow
from decoding.speculation.interfaces import Branch, Draft, DrawKind, Drawn, Feedback, Plan
from decoding.validation import is_count

_EMPTY = Draft()


@dataclass
class TreeDrafter:
    """Implements `Drafter`.

    source      where guesses come from
    draw        how children are picked
    width       children of a node at most, where no template says
    depth       levels at most

    Raises: ValueError for a source that only ranks and a draw that needs probabilities.
    """

    source: Source
    draw: DrawKind = "coupled"
    width: int = 8
    depth: int = 20

    def __post_init__(self) -> None:
        for name in ("width", "depth"):
            if not is_count(getattr(self, name), at_least=1):
                raise ValueError(f"{name} must be an int >= 1, got {getattr(self, name)!r}")
        if self.draw not in CODES:
            raise ValueError(f"draw must be one of {', '.join(CODES)}, got {self.draw!r}")
        if self.draw != "likely" and not self.source.has_probabilities:
            raise ValueError(
                f"{type(self.source).__name__} only ranks its guesses: draw must be likely, got {self.draw}"
            )
        self._calibration = Calibration()
        prunable = self.draw in ("coupled", "likely")
        self._table = self.source if prunable and isinstance(self.source, Tabled) else None
        self._level_seconds = 0.0  # what a level of drafts takes; with a draft model, a forward pass

    @property
    def feedback_k(self) -> int:
        return self.source.feedback_k

    def propose(self, branches: Sequence[Branch], plan: Plan) -> list[Draft]:
        if not branches or not plan.total:
            return [_EMPTY] * len(branches)
        knobs = Knobs(self.draw, self.width, self.depth)
        if self._table is not None and plan.template is None:
            return _drafts(from_table(self._table, self._calibration, knobs, branches, plan), branches, plan)
        begin = time.perf_counter()
        least_gain = -np.inf
        if plan.price is not None and plan.price.round_seconds > 0:  # at plain decoding's rate
            least_gain = len(branches) / plan.price.round_seconds * self._level_seconds
        levels = grow(self.source, self._calibration, knobs, branches, plan, least_gain)
        took = (time.perf_counter() - begin) / (1 + len(levels))
        # the least of late: the first rounds compile, and others use the machine too
        self._level_seconds = min(took, 1.05 * self._level_seconds) if self._level_seconds else took
        if self.draw in ("without_replacement", "iid"):
            if plan.template is None:
                raise ValueError(
                    f"draw={self.draw} may not be pruned by probability: it needs a controller with a template"
                )
            return _drawn(levels, len(branches), self.draw)
        if not levels:
            return [_EMPTY] * len(branches)
        columns = (np.concatenate([level[i] for level in levels]) for i in range(5))
        return _drafts(Grown(*columns), branches, plan)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.source.observe(feedback)
        guessed = [seen for seen in feedback if seen.draft.labels]
        if guessed:
            reached, came_true, labels = _outcomes(guessed)
            self._calibration.observe(labels[reached], came_true[reached])


def _drafts(grown: Grown, branches: Sequence[Branch], plan: Plan) -> list[Draft]:
    """A draft per branch; where no template was filled, of the likeliest nodes, as many as the plan has room for and
    are worth their price."""
    branch, parent, token, reach, label = grown
    order = np.argsort(branch, kind="stable")
    if plan.template is None:
        kept = np.zeros(len(reach), dtype=bool)
        kept[_likeliest(branch, reach, plan)] = True
        order = order[kept[order]]
    sizes = np.bincount(branch[order], minlength=len(branches))
    ends = np.cumsum(sizes)
    place = np.full(len(reach) + 1, -1)  # a node's index in its own draft; the anchor's, -1, is last
    place[order] = np.arange(len(order)) - (ends - sizes)[branch[order]]
    tokens, parents = token[order].tolist(), place[parent[order]].tolist()
    reaches, labels = reach[order].tolist(), label[order].tolist()
    return [
        Draft(tuple(tokens[a:b]), tuple(parents[a:b]), tuple(reaches[a:b]), tuple(labels[a:b])) if b > a else _EMPTY
        for a, b in zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True)
    ]


def _likeliest(branch: Ints, reach: Floats, plan: Plan) -> Ints:
    """The nodes to keep, likeliest first."""
    # stable, so that of equals the earlier comes first: no child before its parent
    best = np.argsort(-reach, kind="stable")
    if min(plan.nodes) < plan.total:
        whose = np.argsort(branch[best], kind="stable")  # each branch's nodes together, likeliest first
        sizes = np.bincount(branch, minlength=len(plan.nodes))
        place = np.arange(len(best)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # among its branch's
        within = np.zeros(len(best), dtype=bool)
        within[whose] = place < np.repeat(plan.nodes, sizes)
        best = best[within]
    best = best[: plan.total]
    return best if plan.price is None else best[: plan.price.worth(reach[best], len(plan.nodes))]


def _drawn(levels: Sequence[Level], branches: int, kind: DrawKind) -> list[Draft]:
    """The same with a record of how each was drawn, which rules that undo the draw need. Templates only."""
    drafts = [_Record() for _ in range(branches)]
    index: dict[int, int] = {-1: -1}  # node number to index in its own draft
    count = 0
    for level in levels:
        columns = (level.branch, level.parent, level.token, level.reach, level.label, level.row)
        for branch, parent, token, reach, label, row in zip(*(column.tolist() for column in columns), strict=True):
            some = level.q_FK[row] > 0
            q = level.q_FK[row][some].astype(np.float64)
            index[count] = drafts[branch].add(
                index[parent], token, reach, label, (level.ids_FK[row][some], q / q.sum())
            )
            count += 1
    return [draft.finished(kind) for draft in drafts]


class _Record:
    """A draft being written down, node by node. A token drawn twice at one parent is one node."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], tuple[float, int]] = {}  # (parent, token): (reach, label)
        self.index: dict[tuple[int, int], int] = {}
        self.draws: dict[int, tuple[int, ...]] = {}
        self.q: dict[int, tuple[Ints, npt.NDArray[np.float64]]] = {}

    def add(self, parent: int, token: int, reach: float, label: int, q: tuple[Ints, npt.NDArray[np.float64]]) -> int:
        node = self.index.setdefault((parent, token), len(self.index))
        most, first = self.nodes.get((parent, token), (reach, label))
        self.nodes[parent, token] = max(most, reach), first
        self.draws[parent] = (*self.draws.get(parent, ()), node)
        self.q[parent] = q
        return node

    def finished(self, kind: DrawKind) -> Draft:
        if not self.nodes:
            return Draft()
        parents, tokens = zip(*self.nodes, strict=True)
        reach, labels = zip(*self.nodes.values(), strict=True)
        return Draft(tokens, parents, reach, labels, Drawn(kind, self.draws, self.q))


def _outcomes(feedback: Sequence[Feedback]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Ints]:
    """For every node: was its parent reached, was it accepted, and its label. Arrays `[N]`."""
    sizes = np.array([len(seen.draft.tokens) for seen in feedback])
    first = np.cumsum(sizes) - sizes
    accepted = np.zeros(int(sizes.sum()), dtype=bool)
    accepted[[at + node for at, seen in zip(first.tolist(), feedback, strict=True) for node in seen.accepted]] = True
    parent = np.array(list(chain.from_iterable(seen.draft.parents for seen in feedback)))
    labels = np.array(list(chain.from_iterable(seen.draft.labels for seen in feedback)))
    reached = (parent < 0) | accepted[np.maximum(parent, 0) + np.repeat(first, sizes)]
    return reached, accepted, labels

"""Drafter that builds trees from a draft source and calibrates their probabilities with the outcomes.

Shapes: N nodes of all drafts of a round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.speculation.controllers.template import read_template
from decoding.speculation.draft import (
    MAX_DRAFT_SIZE,
    RANDOM_SAMPLING,
    SELF_SHAPED,
    Draft,
    DraftColumns,
    DraftSampling,
    SamplingRecord,
    TreeTemplate,
)
from decoding.speculation.drafters.best_first import GroupedNodes, TreeNodes, group_by_branch
from decoding.speculation.drafters.branch_columns import BranchColumns
from decoding.speculation.drafters.calibration import AcceptanceCalibration
from decoding.speculation.drafters.child_selection import SAMPLING_CODES
from decoding.speculation.drafters.random_shapes import build_random_shape
from decoding.speculation.drafters.source import DraftSource, Ints
from decoding.speculation.drafters.tree_builder import (
    LevelSource,
    TableSource,
    TreeSettings,
    build_levels,
    draft_from_table,
    draft_with_model,
    select_likeliest,
)
from decoding.speculation.drafters.tree_levels import TreeLevel
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback, is_trained, reads_hidden
from decoding.validation import require_choice, require_count

_EMPTY = Draft()


@dataclass
class TreeDrafter:
    """Implements `Drafter`.

    source      proposes the candidates for every next token
    draw        how children are sampled
    width       maximum children of a node; a template has its own
    depth       maximum levels
    template    as `file` of `TemplateController`: controllers without a shape of their own choose the likeliest nodes
                of this one, and of all trees where it is None

    Raises: ValueError for a source that only ranks and a sampling that needs probabilities.
    """

    source: DraftSource
    draw: DraftSampling = "coupled"
    width: int = 8
    depth: int = 40
    template: str | None = None

    def __post_init__(self) -> None:
        require_count("width", self.width, at_least=1, at_most=MAX_DRAFT_SIZE)
        require_count("depth", self.depth, at_least=1, at_most=MAX_DRAFT_SIZE)
        require_choice("draw", self.draw, (*SAMPLING_CODES, *SELF_SHAPED))
        if self.draw != "likely" and not self.source.has_probabilities:
            raise ValueError(
                f"{type(self.source).__name__} only ranks its candidates: draw must be likely, got {self.draw}"
            )
        self.shape = None if self.template is None else read_template(self.template)
        if self.shape is not None and self.draw in RANDOM_SAMPLING:
            raise ValueError(
                f"template must be null with draw={self.draw}, whose nodes may not be chosen by probability; "
                "choose controller=template"
            )
        self.calibration = AcceptanceCalibration()
        self.prunable = self.draw not in RANDOM_SAMPLING
        self.table = self.source if self.prunable and isinstance(self.source, TableSource) else None
        self.model = self.source if self.prunable and isinstance(self.source, LevelSource) else None
        self.level_seconds = 0.0  # time to build one level; with a draft model that is its forward pass
        self._has_drafted, self._columns = False, BranchColumns()

    @property
    def feedback_k(self) -> int:
        return self.source.feedback_k

    @property
    def reads_hidden(self) -> bool:
        return reads_hidden(self.source)

    @property
    def is_trained(self) -> bool:
        return is_trained(self.source)

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        if not branches or not plan.max_total:
            return [_EMPTY] * len(branches)
        knobs = TreeSettings(self.draw, self.width, self.depth)
        if self.draw in SELF_SHAPED:
            if plan.templates or plan.cost_estimate is not None or plan.least_probabilities:
                raise ValueError(
                    f"draw={self.draw} has a shape of its own: it needs a controller with a number of nodes"
                )
            return _to_recorded_drafts(build_random_shape(self.source, knobs, branches, plan), len(branches), self.draw)
        own_shape = None if plan.templates else self.shape
        if own_shape is None and self.table is not None and not plan.templates and not plan.least_probabilities:
            return _list_drafts(draft_from_table(self.table, self.calibration, knobs, self._columns, branches, plan))
        begin = time.perf_counter()
        if self.model is not None and own_shape is None and not plan.templates:
            drafts = draft_with_model(
                self.model, self.calibration, knobs, self._columns, branches, plan, self.level_seconds
            )
            if drafts is not None:
                self._learn_level(begin, drafts.num_levels)
                return _list_drafts(drafts.nodes)
        filled = plan if own_shape is None else _fill_template(plan, own_shape)
        levels = build_levels(self.source, self.calibration, knobs, branches, filled, self.level_seconds)
        self._learn_level(begin, len(levels))
        if not self.prunable:
            if not plan.templates:
                raise ValueError(
                    f"draw={self.draw} may not be pruned by probability: it needs a controller with a template"
                )
            return _to_recorded_drafts(levels, len(branches), self.draw)
        if not levels:
            return [_EMPTY] * len(branches)
        # The first five fields of `TreeLevel` are those of `TreeNodes`, in the same order.
        columns = (np.concatenate([level[i] for level in levels]) for i in range(5))
        return _to_drafts(TreeNodes(*columns), branches, plan)

    def _learn_level(self, begin: float, num_levels: int) -> None:
        """Learns from drafts with so many levels, begun at `begin`, how long one takes. *Mutates*."""
        if not self._has_drafted:  # the first draft loads machine code, and a draft model computes all texts for it
            self._has_drafted = True
            return
        seconds = (time.perf_counter() - begin) / (1 + num_levels)
        # A slowly rising minimum: other processes use the machine too.
        self.level_seconds = min(seconds, 1.05 * self.level_seconds) if self.level_seconds else seconds

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.source.observe(feedback)
        if with_draft := [outcome for outcome in feedback if outcome.draft.labels]:
            self.calibration.observe_round(with_draft)


def _fill_template(plan: DraftPlan, template: TreeTemplate) -> DraftPlan:
    """Returns a plan with all nodes of the template for each branch that may have any: the candidates of `plan`."""
    sizes = tuple(len(template) if most else 0 for most in plan.max_nodes)
    return DraftPlan(sizes, sum(sizes), template=template)


def _to_drafts(nodes: TreeNodes, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
    """Returns a draft per branch; without a template only the most likely nodes within the plan."""
    is_kept = np.ones(len(nodes.branch), dtype=np.bool_)
    if not plan.templates:
        is_kept[:] = False
        is_kept[select_likeliest(nodes.branch, nodes.path_probability, plan)] = True
        if plan.least_probabilities:
            is_kept &= nodes.path_probability > np.array(plan.least_probabilities, dtype=np.float32)[nodes.branch]
    return _list_drafts(group_by_branch(nodes, is_kept, len(branches)))


def _list_drafts(nodes: GroupedNodes) -> list[Draft]:
    probability_N = nodes.path_probability_N.astype(np.float64)
    tokens_N, parents_N, labels_N = nodes.ids_3N
    tokens, parents, labels = nodes.ids_3N.tolist()
    probabilities = probability_N.tolist()
    drafts, begin = list[Draft](), 0
    for end in nodes.ends_B.tolist():
        at = slice(begin, end)
        if begin == end:
            drafts.append(_EMPTY)
            continue
        draft = Draft(tuple(tokens[at]), tuple(parents[at]), tuple(probabilities[at]), tuple(labels[at]))
        # where `LazyProperty` stores its value: the arrays are read again when the outcome is learned
        draft.__dict__["columns"] = DraftColumns(tokens_N[at], parents_N[at], labels_N[at], probability_N[at])
        drafts.append(draft)
        begin = end
    return drafts


def _to_recorded_drafts(levels: Sequence[TreeLevel], branches: int, kind: DraftSampling) -> list[Draft]:
    """Returns a draft per branch with its sampling record, for rejection rules. For templates only."""
    drafts = [_RecordedDraft() for _ in range(branches)]
    index: dict[int, int] = {-1: -1}  # node number to index in its own draft
    count = 0
    for level in levels:
        columns = (level.branch, level.parent, level.token, level.path_probability, level.label, level.parent_row)
        for branch, parent, token, probability, label, row in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            possible = level.q_FK[row] > 0
            # A copy in float64 that sums to 1: tables change later, and residuals subtract these numbers.
            q = level.q_FK[row][possible].astype(np.float64)
            index[count] = drafts[branch].add_node(
                index[parent], token, probability, label, (level.ids_FK[row][possible], q / q.sum())
            )
            count += 1
    return [draft.to_draft(kind) for draft in drafts]


class _RecordedDraft:
    """Builds a draft with its sampling record node by node. A token drawn twice at one parent is one node."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], tuple[float, int]] = {}  # (parent, token): (probability, label)
        self.index: dict[tuple[int, int], int] = {}
        self.draws: dict[int, tuple[int, ...]] = {}
        self.q: dict[int, tuple[Ints, npt.NDArray[np.float64]]] = {}

    def add_node(
        self, parent: int, token: int, probability: float, label: int, q: tuple[Ints, npt.NDArray[np.float64]]
    ) -> int:
        node = self.index.setdefault((parent, token), len(self.index))
        # A token drawn twice has the label of its first draw and the larger of the probabilities.
        highest, first_label = self.nodes.get((parent, token), (probability, label))
        self.nodes[parent, token] = max(highest, probability), first_label
        # A repeated node stays repeated: recursive_iid tries every draw.
        self.draws[parent] = (*self.draws.get(parent, ()), node)
        self.q[parent] = q
        return node

    def to_draft(self, kind: DraftSampling) -> Draft:
        if not self.nodes:
            return Draft()
        parents, tokens = zip(*self.nodes, strict=True)
        probability, labels = zip(*self.nodes.values(), strict=True)
        return Draft(tokens, parents, probability, labels, SamplingRecord(kind, self.draws, self.q))

"""Builds draft trees from a source, level by level for all branches at once.

There are two ways: to fill a template, or to take the nodes of the highest path probability anywhere in the batch. The
second way selects by the drawn tokens, so it is lossless only for `coupled` and `likely` drafts.

Shapes: B branches, F parents of a level, K candidates, W maximum children of each, D depth, N nodes, P template nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from decoding.noise import noise_keys, wrap_seeds
from decoding.sampling_columns import SamplingColumns
from decoding.speculation.draft import DraftSampling, TreeTemplate
from decoding.speculation.drafters.best_first import DraftLimits, GroupedNodes, TableLookup, build_best_first
from decoding.speculation.drafters.branch_columns import BranchColumns
from decoding.speculation.drafters.calibration import AcceptanceCalibration
from decoding.speculation.drafters.child_selection import SAMPLING_CODES
from decoding.speculation.drafters.feeding import Feeding, limit_feeding, mark_passes
from decoding.speculation.drafters.model_drafts import LevelLimits, ModelDrafts, NodeChoice
from decoding.speculation.drafters.source import DraftSource, Floats, Ints
from decoding.speculation.drafters.tree_levels import (
    FrontierNodes,
    Keys,
    TreeLevel,
    expand_level,
    raise_floors,
    raise_floors_to_rate,
    select_open_rows,
)
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan

_FRESH = 0x5851F42D4C957F2D  # random drafts must be independent of the noise of the target


class TreeSettings(NamedTuple):
    """Settings of `TreeDrafter`."""

    sampling: DraftSampling
    width: int
    depth: int


def build_levels(
    source: DraftSource,
    calibration: AcceptanceCalibration,
    knobs: TreeSettings,
    branches: Sequence[Branch],
    plan: DraftPlan,
    level_seconds: float = 0.0,
) -> list[TreeLevel]:
    """Returns the levels of all drafts from the roots down; without a template maybe more than `max_total` nodes.

    Ends before a level that adds fewer expected accepted tokens, minus the minimum cost of its nodes, than the best
    rate so far gives in `level_seconds`.
    With `iid` a token drawn twice at one parent is two nodes here.
    """
    has_template = len(plan.templates) > 0
    child_PW, first_B = _template_children(plan.templates, knobs.width, len(branches))
    allowed_B = np.array(plan.max_nodes) + first_B
    depth_B = max_depths(branches, knobs.depth)
    sampling, noise = SamplingColumns.from_params([branch.params for branch in branches]), NoiseKeys(branches, knobs)
    odds_BL = calibration.requests.odds_of(branches)
    state = source.root_states(branches)
    parents = FrontierNodes(
        np.arange(len(branches)),
        np.full(len(branches), -1),
        np.ones(len(branches), dtype=np.float32),
        first_B - 1,
    )
    # A child must be above its branch's floor; -1 lets all children of a template through, 0 those that are possible.
    floor = -1.0 if has_template else 0.0
    estimate = plan.cost_estimate
    if not has_template and estimate is not None:
        floor = estimate.min_probability(len(branches))
    node_cost, floor_B = max(floor, 0.0), np.full(len(branches), floor, dtype=np.float32)
    if plan.least_probabilities:
        floor_B = np.maximum(floor_B, np.array(plan.least_probabilities, dtype=np.float32))
    feeding = Feeding(len(branches), plan.max_total, np.empty(0) if estimate is None else estimate.seconds_N)
    path_probability = np.empty(0, dtype=np.float32)  # of all levels so far
    rate = 0.0 if estimate is None else len(branches) / estimate.round_seconds
    levels: list[TreeLevel] = []
    last = int(depth_B.max())
    for depth in range(last):
        rows = select_open_rows(parents, allowed_B, depth_B, depth, floor_B, child_PW)
        if not len(rows):
            break
        passes = None if has_template else mark_passes(source, state[rows])
        if passes is not None:
            rows = rows[feeding.select_rows(passes, parents.path_probability[rows], path_probability, last - depth)]
            if not len(rows):
                break
        if len(rows) < len(parents.branch):
            state, parents = state[rows], parents.select_rows(rows)
        candidates = source.next_tokens(state)
        level = TreeLevel(
            *expand_level(
                SAMPLING_CODES[knobs.sampling],
                candidates.ids_FK,
                candidates.logp_FK,
                candidates.trust_F,
                parents,
                sampling,
                noise.keys_of(parents.branch, parents.node, depth),
                calibration.hits,
                calibration.trials,
                odds_BL,
                allowed_B,
                child_PW,
                has_template,
                floor_B,
            )
        )
        if not len(level.token) or float((level.path_probability - node_cost).sum()) < rate * level_seconds:
            break
        count = sum(len(level.token) for level in levels)
        levels.append(level)
        if passes is not None:
            feeding.observe_level(parents.path_probability, level.parent_row, level.path_probability)
        if not has_template:
            branch, path_probability = (np.concatenate([one[i] for one in levels]) for i in (0, 3))
            # All levels so far: a node of this level may push one of an earlier level below its branch's limit.
            raise_floors(branch, path_probability, allowed_B, plan.max_total, floor_B)
            if estimate is not None:
                best_rate = raise_floors_to_rate(
                    branch, path_probability, estimate.seconds_N, estimate.least_seconds, floor_B
                )
                rate = max(rate, best_rate)
        # `parent_row` may repeat: each child gets its own copy of its parent's state.
        state = source.advance(state[level.parent_row], level.token)
        parents = FrontierNodes(
            level.branch, np.arange(count, count + len(level.token)), level.path_probability, level.template_node
        )
    return levels


@runtime_checkable
class TableSource(Protocol):
    """Draft source with an n-gram table, for which `draft_from_table` is faster."""

    def table_lookup(self, branches: Sequence[Branch]) -> TableLookup:
        """Returns the table and the contexts of the branches."""
        ...


def draft_from_table(
    source: TableSource,
    calibration: AcceptanceCalibration,
    knobs: TreeSettings,
    columns: BranchColumns,
    branches: Sequence[Branch],
    plan: DraftPlan,
) -> GroupedNodes:
    """Returns the nodes of `build_levels` that the plan keeps, for `coupled` and `likely` drafts without a template."""
    estimate = plan.cost_estimate or CostEstimate.along_line(1.0, 0.0, plan.max_total)
    limits = DraftLimits(
        np.array(plan.max_nodes),
        max_depths(branches, knobs.depth),
        min(plan.max_total, len(estimate.seconds_N) - 1),
        knobs.width,
        estimate.seconds_N,
        np.array(estimate.corners),
        estimate.keep_gain,
    )
    ends = np.array([len(branch.tokens) for branch in branches])
    counts = (calibration.hits, calibration.trials, calibration.requests.odds_of(branches))
    code = SAMPLING_CODES[knobs.sampling]
    return build_best_first(source.table_lookup(branches), limits, code, *columns.collect(branches), ends, *counts)


@runtime_checkable
class LevelSource(Protocol):
    """Draft source with a model that compiled code can run over all levels in one call."""

    def draft_levels(self, branches: Sequence[Branch], limits: LevelLimits, choice: NodeChoice) -> ModelDrafts | None:
        """Returns the nodes of `build_levels` that the limits keep, or None where it cannot."""
        ...


def draft_with_model(
    source: LevelSource,
    calibration: AcceptanceCalibration,
    knobs: TreeSettings,
    columns: BranchColumns,
    branches: Sequence[Branch],
    plan: DraftPlan,
    level_seconds: float = 0.0,
) -> ModelDrafts | None:
    """Returns the nodes of `build_levels` that the plan keeps, for `coupled` and `likely` drafts without a template.

    None where the source cannot.
    """
    estimate, node_cost = plan.cost_estimate, 0.0
    if estimate is not None:
        node_cost = max(estimate.min_probability(len(branches)), 0.0)
    floor_B = np.full(len(branches), node_cost, dtype=np.float32)
    if plan.least_probabilities:
        floor_B = np.maximum(floor_B, np.array(plan.least_probabilities, dtype=np.float32))
    depth_B = max_depths(branches, knobs.depth)
    limits = LevelLimits(
        np.array(plan.max_nodes),
        depth_B,
        floor_B,
        plan.max_total,
        knobs.width,
        node_cost,
        level_seconds,
        0.0 if estimate is None else len(branches) / estimate.round_seconds,
        np.empty(0) if estimate is None else estimate.seconds_N,
        0.0 if estimate is None else estimate.least_seconds,
        limit_feeding(plan.max_total),
        1.0 if estimate is None else estimate.keep_gain,
    )
    choice = NodeChoice(
        SAMPLING_CODES[knobs.sampling],
        *columns.collect(branches),
        np.array([len(branch.tokens) for branch in branches]),
        calibration.hits,
        calibration.trials,
        calibration.requests.odds_of(branches),
    )
    return source.draft_levels(branches, limits, choice)


def select_likeliest(branch: Ints, probability: Floats, plan: DraftPlan) -> Ints:
    """Returns the indices of the selected nodes, most likely first."""
    # Stable, so that of equals the earlier comes first: no child before its parent.
    best = np.argsort(-probability, kind="stable")
    if min(plan.max_nodes) < plan.max_total:
        by_branch = np.argsort(branch[best], kind="stable")  # each branch's nodes together, most likely first
        sizes = np.bincount(branch, minlength=len(plan.max_nodes))
        place = np.arange(len(best)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # rank among its branch's nodes
        within = np.zeros(len(best), dtype=bool)
        within[by_branch] = place < np.repeat(plan.max_nodes, sizes)
        best = best[within]
    best = best[: plan.max_total]
    if plan.cost_estimate is None:
        return best
    return best[: plan.cost_estimate.count_worthwhile(probability[best], len(plan.max_nodes))]


def max_depths(branches: Sequence[Branch], depth: int) -> Ints:
    """Returns how deep the draft of each branch may be."""
    # One less than the remaining tokens: the round commits a token after the draft.
    return np.array([min(branch.remaining - 1, depth) for branch in branches], dtype=np.int64)


def _template_children(templates: Sequence[TreeTemplate], width: int, branches: int) -> tuple[Ints, Ints]:
    """Returns `[P, W]`: the children of each template node by rank; and `[B]`: the number of each branch's first node.

    The different templates lie one after the other: n rows of nodes follow a row of their root. So the children of node
    i are in row i + 1, and those of the root in the row of the first node. A missing child is the largest int64, which
    is above every limit on nodes. Without templates `[1, W]` zeros.
    """
    if not templates:
        return np.zeros((1, width), dtype=np.int64), np.zeros(branches, dtype=np.int64)
    first_nodes: dict[TreeTemplate, int] = {}
    rows = 0
    for template in dict.fromkeys(templates):
        first_nodes[template] = rows
        rows += len(template) + 1
    widest = max(max(template.ranks, default=0) for template in first_nodes) + 1
    child_PW = np.full((rows, widest), np.iinfo(np.int64).max, dtype=np.int64)
    for template, first in first_nodes.items():
        for node, (parent, rank) in enumerate(zip(template.parents, template.ranks, strict=True)):
            child_PW[first + parent + 1, rank] = first + node
    return child_PW, np.array([first_nodes[template] for template in templates], dtype=np.int64)


class NoiseKeys:
    """Keys of the noise with which the children of a round are drawn."""

    def __init__(self, branches: Sequence[Branch], knobs: TreeSettings) -> None:
        self._coupled = knobs.sampling == "coupled"
        self._seeds = [branch.seed for branch in branches]
        self._ends = [len(branch.tokens) for branch in branches]
        depth = knobs.depth if self._coupled else 0
        seeds = np.repeat(wrap_seeds(self._seeds), depth)
        positions = (np.array(self._ends)[:, None] + np.arange(depth)).ravel()
        self.keys_BD2 = noise_keys(seeds, positions).reshape(len(branches), depth, 2)

    def keys_of(self, branch_F: Ints, node_F: Ints, depth: int) -> Keys:
        """Returns `[F, 2]`: the target's keys at the children's position, or fresh ones for each round and parent."""
        if self._coupled:
            # Depth 0 is the position after the committed tokens, where the target draws next.
            keys_F2: Keys = self.keys_BD2[branch_F, depth]
            return keys_F2
        # Unique: the length of a branch never repeats, and node numbers are distinct in a round (below 2**20).
        branches = branch_F.tolist()
        rounds = [(self._ends[branch] << 20) + 1 + node for branch, node in zip(branches, node_F.tolist(), strict=True)]
        return noise_keys([self._seeds[branch] ^ _FRESH for branch in branches], rounds)

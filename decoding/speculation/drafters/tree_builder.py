"""Builds draft trees from a source, level by level for all branches at once.

Two ways: fill a template, or take the nodes of the highest path probability, wherever in the batch they are. The second
selects by what was drawn, so it is lossless only for `coupled` and `likely` drafts.

Shapes: B branches, F parents of a level, K candidates, W maximum children of each, D depth, N nodes, P template nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.noise import noise_keys
from decoding.speculation.draft import DraftSampling, TreeTemplate
from decoding.speculation.drafters.best_first import DraftLimits, TableLookup, TreeNodes, build_best_first
from decoding.speculation.drafters.calibration import AcceptanceCalibration, calibrated_probability, calibration_bucket
from decoding.speculation.drafters.child_selection import (
    SAMPLING_CODES,
    BranchSampling,
    filter_probabilities,
    select_children,
)
from decoding.speculation.drafters.source import DraftSource, Floats, Ints
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan

Keys = npt.NDArray[np.int32]

_MASK = 0xFFFFFFFFFFFFFFFF
_FRESH = 0x5851F42D4C957F2D  # random drafts must be independent of the noise that the target will use


class TreeSettings(NamedTuple):
    """Settings of `TreeDrafter`."""

    sampling: DraftSampling
    width: int
    depth: int


class FrontierNodes(NamedTuple):
    """The nodes whose children are next: arrays `[F]`.

    node           number in the order built, over all branches; -1 for a root
    template_node  index in the template; -1 for a root
    """

    branch: Ints
    node: Ints
    path_probability: Floats
    template_node: Ints

    def select_rows(self, rows: Ints) -> FrontierNodes:
        return FrontierNodes(self.branch[rows], self.node[rows], self.path_probability[rows], self.template_node[rows])


class TreeLevel(NamedTuple):
    """The nodes of one depth, arrays `[N]`, and the distributions their parents' children were drawn from.

    parent_row     row of the parent among this level's parents, so also of `ids_FK` and `q_FK`
    template_node  index of the node in the template
    """

    branch: Ints
    parent: Ints
    token: Ints
    path_probability: Floats
    label: Ints
    parent_row: Ints
    template_node: Ints
    ids_FK: Ints
    q_FK: Floats


def build_levels(
    source: DraftSource,
    calibration: AcceptanceCalibration,
    knobs: TreeSettings,
    branches: Sequence[Branch],
    plan: DraftPlan,
    least_gain: float = -np.inf,
) -> list[TreeLevel]:
    """Returns the levels of all drafts from the roots down; without a template maybe more than `max_total` nodes.

    Ends before a level whose expected accepted tokens, less what its nodes cost at the least, are below `least_gain`.
    With `iid` a token drawn twice at one parent is two nodes here.
    """
    child_PW = _template_children(plan.template, knobs.width)
    allowed_B = np.array(plan.max_nodes)
    depth_B = _max_depths(branches, knobs.depth)
    sampling, noise = BranchSampling.from_branches(branches), _NoiseKeys(branches, knobs)
    state = source.root_states(branches)
    parents = FrontierNodes(
        np.arange(len(branches)),
        np.full(len(branches), -1),
        np.ones(len(branches), dtype=np.float32),
        np.full(len(branches), -1),
    )
    # A child must be above its branch's floor; -1 lets all children of a template through, 0 those that are possible.
    floor = -1.0 if plan.template else 0.0
    if plan.template is None and plan.cost_estimate is not None:
        floor = plan.cost_estimate.min_probability(len(branches))
    node_cost, floor_B = max(floor, 0.0), np.full(len(branches), floor, dtype=np.float32)
    levels: list[TreeLevel] = []
    for depth in range(int(depth_B.max())):
        rows = _open_rows(parents, allowed_B, depth_B, depth, floor_B, child_PW)
        if not len(rows):
            break
        if len(rows) < len(parents.branch):
            state, parents = state[rows], parents.select_rows(rows)
        candidates = source.next_tokens(state)
        level = TreeLevel(
            *_expand_level(
                SAMPLING_CODES[knobs.sampling],
                candidates.ids_FK,
                candidates.logp_FK,
                candidates.trust_F,
                parents,
                sampling,
                noise.keys_of(parents, depth),
                calibration.hits,
                calibration.trials,
                allowed_B,
                child_PW,
                plan.template is not None,
                floor_B,
            )
        )
        if not len(level.token) or float((level.path_probability - node_cost).sum()) < least_gain:
            break
        count = sum(len(level.token) for level in levels)
        levels.append(level)
        if plan.template is None:
            branch, path_probability = (np.concatenate([one[i] for one in levels]) for i in (0, 3))
            _raise_floors(branch, path_probability, allowed_B, plan.max_total, floor_B)
        state = source.advance(state[level.parent_row], level.token)
        parents = FrontierNodes(
            level.branch, np.arange(count, count + len(level.token)), level.path_probability, level.template_node
        )
    return levels


@runtime_checkable
class TableSource(Protocol):
    """A source that is an n-gram table, for which `build_from_table` is faster."""

    def table_lookup(self, branches: Sequence[Branch]) -> TableLookup:
        """Returns the table and the contexts of the branches."""
        ...


def build_from_table(
    source: TableSource,
    calibration: AcceptanceCalibration,
    knobs: TreeSettings,
    branches: Sequence[Branch],
    plan: DraftPlan,
) -> TreeNodes:
    """Returns the nodes of `build_levels` that the plan keeps, for `coupled` and `likely` drafts without a template."""
    estimate = plan.cost_estimate or CostEstimate(1.0, 0.0)
    limits = DraftLimits(
        np.array(plan.max_nodes),
        _max_depths(branches, knobs.depth),
        plan.max_total,
        knobs.width,
        max(estimate.round_seconds, 1e-12),
        estimate.seconds_per_node,
    )
    keys_BD2, sampling = _NoiseKeys(branches, knobs).keys_BD2, BranchSampling.from_branches(branches)
    lookup, counts = source.table_lookup(branches), (calibration.hits, calibration.trials)
    return TreeNodes(*build_best_first(lookup, limits, SAMPLING_CODES[knobs.sampling], sampling, keys_BD2, *counts))


def _max_depths(branches: Sequence[Branch], depth: int) -> Ints:
    return np.minimum([branch.remaining - 1 for branch in branches], depth)


def _template_children(template: TreeTemplate | None, width: int) -> Ints:
    """Returns `[1 + P, W]`: the children of each template node by rank, row 0 those of the root.

    A missing child is the largest int64, which is above every limit on nodes. Without a template `[1, W]` zeros.
    """
    if template is None:
        return np.zeros((1, width), dtype=np.int64)
    none = np.iinfo(np.int64).max
    child_PW = np.full((len(template) + 1, max(template.ranks, default=0) + 1), none, dtype=np.int64)
    for node, (parent, rank) in enumerate(zip(template.parents, template.ranks, strict=True)):
        child_PW[parent + 1, rank] = node
    return child_PW


class _NoiseKeys:
    """Keys of the noise that children are drawn with."""

    def __init__(self, branches: Sequence[Branch], knobs: TreeSettings) -> None:
        self._coupled = knobs.sampling == "coupled"
        self._seeds = [branch.seed for branch in branches]
        self._ends = [len(branch.tokens) for branch in branches]
        depth = knobs.depth if self._coupled else 0
        seeds = np.repeat(np.array([seed & _MASK for seed in self._seeds], dtype=np.uint64), depth)
        positions = (np.array(self._ends)[:, None] + np.arange(depth)).ravel()
        self.keys_BD2 = noise_keys(seeds, positions).reshape(len(branches), depth, 2)

    def keys_of(self, parents: FrontierNodes, depth: int) -> Any:
        """Returns `[F, 2]`: the target's keys at the children's position, or fresh ones for each round and parent."""
        if self._coupled:
            return self.keys_BD2[parents.branch, depth]
        # Unique: the length of a branch never repeats, and node numbers are distinct in a round (below 2**20).
        branches = parents.branch.tolist()
        rounds = [(self._ends[branch] << 20) + 1 + node for branch, node in zip(branches, parents.node, strict=True)]
        return noise_keys([self._seeds[branch] ^ _FRESH for branch in branches], rounds)


@compiled
def _open_rows(
    parents: FrontierNodes, allowed_B: Ints, depth_B: Ints, depth: int, floor_B: Floats, child_PW: Ints
) -> Ints:
    """Returns the rows of parents that may have children: above the floor, within depth and the branch's nodes."""
    rows = np.empty(len(parents.branch), dtype=np.int64)
    count = 0
    for f in range(len(parents.branch)):
        branch = parents.branch[f]
        place = parents.template_node[f] + 1 if len(child_PW) > 1 else 0
        if (
            depth_B[branch] > depth
            and parents.path_probability[f] > floor_B[branch]
            and child_PW[place, 0] < allowed_B[branch]
        ):
            rows[count] = f
            count += 1
    return rows[:count]


@compiled
def _raise_floors(branch_N: Ints, probability_N: Floats, allowed_B: Ints, total: int, floor_B: Floats) -> None:
    """Raises the floors so that nodes below are neither among the branch's best `allowed` nor the best `total` of all.

    `probability_N` are the path probabilities of all nodes so far. Children are never above their parent, so a floor
    can only rise from level to level. *Mutates* `floor_B`.
    """
    is_candidate = np.ones(len(probability_N), dtype=np.bool_)
    for b in range(len(allowed_B)):
        if 0 < allowed_B[b] < total:
            of_branch = branch_N == b
            over = of_branch.sum() - allowed_B[b]
            if over > 0:
                # The `over` smallest cannot stay: the next one is the new floor.
                floor_B[b] = max(floor_B[b], np.partition(probability_N[of_branch], over)[over])
                is_candidate &= ~of_branch | (probability_N >= floor_B[b])
    over = is_candidate.sum() - total
    if over > 0:
        floor_B[:] = np.maximum(floor_B, np.partition(probability_N[is_candidate], over)[over])


@compiled
def _expand_level(
    kind: int,
    ids_FK: Ints,
    logp_FK: Floats,
    trust_F: Ints,
    parents: FrontierNodes,
    sampling: BranchSampling,
    keys_F2: Keys,
    hits: npt.NDArray[np.float64],
    trials: npt.NDArray[np.float64],
    allowed_B: Ints,
    child_PW: Ints,
    has_template: bool,
    floor_B: Floats,
) -> tuple[Ints, Ints, Ints, Floats, Ints, Ints, Ints, Ints, Floats]:
    """Returns the columns of a `TreeLevel`: drawn children that are in the template or above their branch's floor."""
    contexts, candidates = ids_FK.shape
    width = child_PW.shape[1]
    most = contexts * width
    branch, node, token = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    label, row, place = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    path_probability = np.empty(most, dtype=np.float32)
    q_FK = np.zeros((contexts, candidates), dtype=np.float32)
    ids_W, chance_W = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.float32)
    n = 0
    for f in range(contexts):
        b = parents.branch[f]
        temperature = sampling.temperature_B[b]
        num_kept = filter_probabilities(
            logp_FK[f], temperature, sampling.top_k_B[b], sampling.top_p_B[b], sampling.min_p_B[b], q_FK[f]
        )
        num_drawn = select_children(
            kind, ids_FK[f], q_FK[f], num_kept, temperature == 0, keys_F2[f, 0], keys_F2[f, 1], ids_W, chance_W
        )
        for w in range(num_drawn):
            template_node = child_PW[parents.template_node[f] + 1, w] if has_template else 0
            if template_node >= allowed_B[b]:
                break  # templates are in order of value: later siblings have larger numbers
            bucket = calibration_bucket(trust_F[f], w, chance_W[w])
            probability = parents.path_probability[f] * calibrated_probability(hits, trials, bucket, chance_W[w])
            if not has_template and probability <= floor_B[b]:
                continue
            branch[n], node[n], token[n], path_probability[n] = b, parents.node[f], ids_W[w], probability
            label[n], row[n], place[n] = bucket, f, template_node
            n += 1
    return branch[:n], node[:n], token[:n], path_probability[:n], label[:n], row[:n], place[:n], ids_FK, q_FK

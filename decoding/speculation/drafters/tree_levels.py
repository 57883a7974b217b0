"""Compiled steps of `build_levels` over one level of all drafts: open parents, drawn children, probability floors.

Shapes: B branches, F parents of a level, K candidates, W maximum children of each, N nodes, P template nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.sampling_columns import SamplingColumns
from decoding.speculation.drafters.calibration import calibration_bucket, request_probability
from decoding.speculation.drafters.child_selection import filter_probabilities, select_children
from decoding.speculation.drafters.source import Floats, Ints

Keys = npt.NDArray[np.int32]


class FrontierNodes(NamedTuple):
    """The nodes whose children are drawn next: arrays `[F]`.

    node           number in the order built, over all branches; -1 for a root
    template_node  index in the template; -1 for a root
    """

    branch: Ints
    node: Ints
    path_probability: Floats
    template_node: Ints

    def select_rows(self, rows: Ints) -> FrontierNodes:
        """Returns the nodes of these rows."""
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


@compiled
def select_open_rows(
    parents: FrontierNodes, allowed_B: Ints, depth_B: Ints, depth: int, floor_B: Floats, child_PW: Ints
) -> Ints:
    """Returns the rows of parents that may have children: above the floor, within depth and the branch's nodes."""
    rows = np.empty(len(parents.branch), dtype=np.int64)
    count = 0
    for f in range(len(parents.branch)):
        branch = parents.branch[f]
        place = parents.template_node[f] + 1 if len(child_PW) > 1 else 0  # one row: no template, or an empty one
        if (
            depth_B[branch] > depth
            and parents.path_probability[f] > floor_B[branch]
            and child_PW[place, 0] < allowed_B[branch]  # else its first child is beyond the branch's nodes
        ):
            rows[count] = f
            count += 1
    return rows[:count]


@compiled
def raise_floors(branch_N: Ints, probability_N: Floats, allowed_B: Ints, total: int, floor_B: Floats) -> None:
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
                # The `over` smallest are out: the next one is the new floor. Ties at the floor stay candidates.
                floor_B[b] = max(floor_B[b], np.partition(probability_N[of_branch], over)[over])
                is_candidate &= ~of_branch | (probability_N >= floor_B[b])
    over = is_candidate.sum() - total
    if over > 0:
        # In place: the caller passes `floor_B` to the next level.
        floor_B[:] = np.maximum(floor_B, np.partition(probability_N[is_candidate], over)[over])


@compiled
def raise_floors_to_rate(
    branch_N: Ints, probability_N: Floats, seconds_N: npt.NDArray[np.float64], least_seconds: float, floor_B: Floats
) -> float:
    """Raises the floors so that nodes below do not raise tokens per second, whatever nodes follow; returns the rate.

    The rate of the nodes so far is a lower bound of the best one, and a node takes at least `least_seconds`.
    `probability_N` are the path probabilities of all nodes so far. *Mutates* `floor_B`.
    """
    rate, tokens, count = len(floor_B) / seconds_N[0], float(len(floor_B)), 0
    falling_N = np.sort(-probability_N[probability_N > floor_B[branch_N]])
    for n in range(min(len(falling_N), len(seconds_N) - 1)):
        tokens, count = tokens - falling_N[n], count + 1
        rate = max(rate, tokens / seconds_N[count])
    for b in range(len(floor_B)):
        floor_B[b] = max(floor_B[b], np.float32(rate * least_seconds))
    return float(rate)


@compiled
def expand_level(
    kind: int,
    ids_FK: Ints,
    logp_FK: Floats,
    trust_F: Ints,
    parents: FrontierNodes,
    sampling: SamplingColumns,
    keys_F2: Keys,
    hits: npt.NDArray[np.float64],
    trials: npt.NDArray[np.float64],
    odds_BL: npt.NDArray[np.float64],
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
        temperature = sampling.temperature_T[b]
        num_candidates = filter_probabilities(
            logp_FK[f], temperature, sampling.top_k_T[b], sampling.top_p_T[b], sampling.min_p_T[b], q_FK[f]
        )
        num_drawn = select_children(
            kind, ids_FK[f], q_FK[f], num_candidates, temperature == 0, keys_F2[f, 0], keys_F2[f, 1], ids_W, chance_W
        )
        for w in range(num_drawn):
            template_node = child_PW[parents.template_node[f] + 1, w] if has_template else 0
            if template_node >= allowed_B[b]:
                break  # templates are in order of value: later siblings have larger numbers
            bucket = calibration_bucket(trust_F[f], w, chance_W[w])
            chance = request_probability(hits, trials, bucket, chance_W[w], odds_BL[b])
            probability = parents.path_probability[f] * chance
            # `<=`: a node at the floor replaces none. No `break`: calibration may rank a later sibling higher.
            if not has_template and probability <= floor_B[b]:
                continue
            branch[n], node[n], token[n], path_probability[n] = b, parents.node[f], ids_W[w], probability
            label[n], row[n], place[n] = bucket, f, template_node
            n += 1
    return branch[:n], node[:n], token[:n], path_probability[:n], label[:n], row[:n], place[:n], ids_FK, q_FK

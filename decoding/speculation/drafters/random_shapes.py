"""Builds drafts whose random draws decide where their nodes are: stochastic beams and dynamic trees.

A node has a cost that is known before its token is drawn, or does not depend on it. Costs rise from a node to its
children and to its later siblings, and the nodes of the lowest costs are the draft. So no token is dropped for its own
probability, and trying the children of a node one by one stays lossless.

stochastic_beam   Recursive Speculative Decoding (Jeon et al., arXiv 2402.14160, RSD-S) with the stochastic beam search
                  of Kool et al. (arXiv 1903.06059). Every path arrives after an exponential time of rate P(path), when
                  the first of its continuations does. The W earliest of a level are W paths drawn without replacement.
                  Their perturbed log-probability is minus the log of this time.
dynamic_tree      DySpec (Xiong et al., arXiv 2410.11744). The cost is minus the estimated chance that a draw is tried:
                  after the draw of a token with probability r it is r times as high for a child, and 1 - r times for
                  the next sibling.

Shapes: B branches, F parents of a level, K candidates, N nodes, W maximum children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.noise import gumbel_of_token
from decoding.sampling_columns import SamplingColumns
from decoding.speculation.drafters.calibration import calibration_bucket
from decoding.speculation.drafters.child_selection import filter_probabilities
from decoding.speculation.drafters.source import DraftSource, Floats, Ints
from decoding.speculation.drafters.tree_builder import NoiseKeys, TreeSettings, max_depths, select_likeliest
from decoding.speculation.drafters.tree_levels import Keys, TreeLevel
from decoding.speculation.interfaces import Branch, DraftPlan

Costs = npt.NDArray[np.float64]


class ShapeNodes(NamedTuple):
    """Nodes as arrays `[N]`.

    number        in the order drawn; -1 for a root
    probability   of the path, under the drafter
    cost          as in the module's description
    """

    branch: Ints
    number: Ints
    probability: Costs
    cost: Costs

    def select_rows(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> ShapeNodes:
        """Returns the nodes of these rows."""
        return ShapeNodes(self.branch[rows], self.number[rows], self.probability[rows], self.cost[rows])


def build_random_shape(
    source: DraftSource, knobs: TreeSettings, branches: Sequence[Branch], plan: DraftPlan
) -> list[TreeLevel]:
    """Returns the levels of all drafts, without the nodes that are not in a draft.

    A beam has `width` paths on every level, as long as the branch's even share of `max_total` lasts. The nodes of
    dynamic trees are in the batch where they are likeliest to be tried; `width` is the maximum of children.
    """
    is_beam = knobs.sampling == "stochastic_beam"
    limits_B = np.array(plan.max_nodes)
    if is_beam:
        limits_B = np.minimum(limits_B, plan.max_total // len(branches))
    depth_B = max_depths(branches, knobs.depth)
    sampling, noise = SamplingColumns.from_params([branch.params for branch in branches]), NoiseKeys(branches, knobs)
    parents = ShapeNodes(
        np.arange(len(branches)),
        np.full(len(branches), -1),
        np.ones(len(branches)),
        np.full(len(branches), 0.0 if is_beam else -1.0),
    )
    state = source.root_states(branches)
    levels: list[TreeLevel] = []
    nodes: list[ShapeNodes] = []
    count = 0
    for depth in range(int(depth_B.max())):
        is_open = (depth_B[parents.branch] > depth) & (limits_B[parents.branch] > 0)
        if not is_open.any():
            break
        state, parents = state[np.flatnonzero(is_open)], parents.select_rows(is_open)
        candidates = source.next_tokens(state)
        branch, row, token, probability, cost, label, q_FK = _draw_children(
            is_beam,
            candidates.ids_FK,
            candidates.logp_FK,
            candidates.trust_F,
            parents,
            sampling,
            noise.keys_of(parents.branch, parents.number, depth),
            knobs.width,
        )
        if is_beam:
            rows = _find_earliest(branch, cost, np.minimum(limits_B, knobs.width))
            branch, row, token = branch[rows], row[rows], token[rows]
            probability, cost, label = probability[rows], cost[rows], label[rows]
            limits_B = limits_B - np.bincount(branch, minlength=len(branches))
        if not len(token):
            break
        numbers = np.arange(count, count + len(token))
        count += len(token)
        levels.append(
            TreeLevel(
                branch,
                parents.number[row],
                token,
                probability.astype(np.float32),
                label,
                row,
                np.zeros(len(token), dtype=np.int64),
                candidates.ids_FK,
                q_FK,
            )
        )
        nodes.append(ShapeNodes(branch, numbers, probability, cost))
        is_alive = np.ones(len(token), dtype=np.bool_)
        if not is_beam:
            # Later nodes can only push out more: what is out now has no children that stay.
            is_alive = _is_selected(nodes, plan)[numbers]
        alive = np.flatnonzero(is_alive)
        state = source.advance(state[row[alive]], token[alive])
        parents = nodes[-1].select_rows(alive)
        if not len(alive):
            break
    return levels if is_beam or not levels else _keep_nodes(levels, _is_selected(nodes, plan))


def _find_earliest(branch_N: Ints, cost_N: Costs, width_B: Ints) -> Ints:
    """Returns the rows of each branch's `width_B` lowest costs, ascending: siblings stay in the order drawn."""
    order = np.lexsort((cost_N, branch_N))
    sizes_B = np.bincount(branch_N, minlength=len(width_B))
    rank_N = np.arange(len(order)) - np.repeat(np.cumsum(sizes_B) - sizes_B, sizes_B)
    return np.sort(order[rank_N < width_B[branch_N[order]]])


def _is_selected(nodes: Sequence[ShapeNodes], plan: DraftPlan) -> npt.NDArray[np.bool_]:
    """Returns for every node whether it has one of the lowest costs of its branch and of the batch."""
    branch_N, cost_N = np.concatenate([one.branch for one in nodes]), np.concatenate([one.cost for one in nodes])
    is_selected = np.zeros(len(cost_N), dtype=np.bool_)
    is_selected[select_likeliest(branch_N, -cost_N, plan)] = True
    return is_selected


def _keep_nodes(levels: Sequence[TreeLevel], kept_N: npt.NDArray[np.bool_]) -> list[TreeLevel]:
    """Returns the levels with these nodes only, which include the parent of each, numbered anew."""
    number_N = np.cumsum(kept_N) - 1
    result, first = [], 0
    for level in levels:
        rows = np.flatnonzero(kept_N[first : first + len(level.token)])
        first += len(level.token)
        parent = level.parent[rows]
        result.append(
            TreeLevel(
                level.branch[rows],
                np.where(parent >= 0, number_N[parent], -1),
                level.token[rows],
                level.path_probability[rows],
                level.label[rows],
                level.parent_row[rows],
                level.template_node[rows],
                level.ids_FK,
                level.q_FK,
            )
        )
    return result


@compiled
def _draw_children(
    is_beam: bool,
    ids_FK: Ints,
    logp_FK: Floats,
    trust_F: Ints,
    parents: ShapeNodes,
    sampling: SamplingColumns,
    keys_F2: Keys,
    width: int,
) -> tuple[Ints, Ints, Ints, Costs, Costs, Ints, Floats]:
    """Returns branch, parent's row, token, probability, cost and label of all children in the order drawn; and q."""
    contexts, candidates = ids_FK.shape
    most = contexts * width
    branch, row, token = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    label, probability, cost = np.empty(most, dtype=np.int64), np.empty(most), np.empty(most)
    q_FK = np.zeros((contexts, candidates), dtype=np.float32)
    arrival_K = np.empty(candidates)
    n = 0
    for f in range(contexts):
        b = parents.branch[f]
        num_candidates = filter_probabilities(
            logp_FK[f],
            sampling.temperature_T[b],
            sampling.top_k_T[b],
            sampling.top_p_T[b],
            sampling.min_p_T[b],
            q_FK[f],
        )
        for k in range(num_candidates):
            # Exponential times of rates q: their order is a sample without replacement.
            noise = gumbel_of_token(keys_F2[f, 0], keys_F2[f, 1], ids_FK[f, k])
            arrival_K[k] = np.exp(-noise) / q_FK[f, k]
        first = arrival_K[:num_candidates].min() if num_candidates > 0 else 0.0
        tried, remaining = parents.probability[f], 1.0
        for w in range(min(width, num_candidates)):
            best = int(np.argmin(arrival_K[:num_candidates]))
            if q_FK[f, best] * parents.probability[f] <= 0:
                break  # underflowed: it never arrives
            if is_beam:
                # The first child arrives with its parent; how much later the others come has no memory of that.
                child_cost = parents.cost[f] + (arrival_K[best] - first) / parents.probability[f]
            else:
                child_cost = -tried
            chance = min(q_FK[f, best] / remaining, 1.0) if remaining > 0 else 1.0
            branch[n], row[n], token[n], cost[n] = b, f, ids_FK[f, best], child_cost
            label[n] = calibration_bucket(trust_F[f], w, q_FK[f, best])
            # of a beam that of the whole path; of a tree that it is tried and passes
            probability[n] = parents.probability[f] * q_FK[f, best] if is_beam else tried * chance
            tried, remaining = tried * (1.0 - chance), remaining - q_FK[f, best]
            arrival_K[best] = np.inf  # without replacement
            n += 1
    return branch[:n], row[:n], token[:n], probability[:n], cost[:n], label[:n], q_FK

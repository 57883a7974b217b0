"""Builds the drafts of a small model in one compiled call: its forward passes, and the choice of nodes between them.

The result equals that of `build_levels`, which runs the model over one level after the other for any backend. A forward
pass of a small model takes a tenth of what it takes to pack its tokens and to choose nodes in Python. A test compares
the two.

Shapes: B branches, F contexts that the model has computed, K candidates, M nodes of all drafts, W maximum children, T
tokens of a pass, R of them whose candidates are wanted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.kv.slots import Slots
from decoding.model.backend import Records
from decoding.model.compiled_attention import Numbers
from decoding.model.compiled_loops import compute_logits
from decoding.model.key_lists import KEYS_RECORD
from decoding.model.panel_products import ZERO, Ints
from decoding.model.panels import Floats, Panels
from decoding.model.tile_products import count_tile_rows
from decoding.noise import noise_key_of
from decoding.speculation.drafters.best_first import TreeNodes, count_worthwhile, group_by_branch
from decoding.speculation.drafters.calibration import calibration_bucket, request_probability
from decoding.speculation.drafters.child_selection import COUPLED, filter_probabilities, select_children
from decoding.speculation.drafters.feeding import select_fed_rows
from decoding.speculation.drafters.model_drafts import HeadIds, LevelLimits, ModelDrafts, NodeChoice, RootContexts
from decoding.speculation.drafters.top_candidates import select_top
from decoding.speculation.drafters.tree_levels import raise_floors, raise_floors_to_rate
from decoding.vector_emitter import LANES


@compiled
def draft_levels(
    shapes: Records, layers: Records, matrices: Panels, vectors: Floats, embedding: Floats, cos_sin: Floats,
    work: Floats, capacity: int, packed: Panels | None, slots: Ints, zeros: Floats, rounded: Panels,
    head: Panels, head_bias: Floats, num_outputs: int, num_pieces: int, head_rounded: Panels, kv: Numbers,
    head_ids: HeadIds, max_positions: int, roots: RootContexts, limits: LevelLimits, choice: NodeChoice,
) -> ModelDrafts:  # fmt: skip
    """Returns the nodes of `build_levels` that the plan keeps, for `coupled` and `likely` drafts without a template.

    The first arguments are those of `compute_logits`; `max_positions` is the model's window.
    """
    kind, sampling, ends_B = choice.kind, choice.sampling, choice.ends_B
    branches, candidates = roots.ids_BK.shape
    width, most_fed = limits.width, len(roots.free_slots)
    most = (branches + most_fed) * width
    branch, parent = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    token, label = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    path_probability, place = np.empty(most, dtype=np.float32), np.empty(most, dtype=np.int64)
    ids_FK = np.empty((most_fed, candidates), dtype=np.int64)
    logp_FK = np.empty((most_fed, candidates), dtype=np.float32)
    q_K = np.empty(candidates, dtype=np.float32)
    ids_W, chance_W = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.float32)
    start_B, most_rows = np.zeros(branches, dtype=np.int64), max(most_fed, len(roots.new_tokens))
    common_B = np.zeros(branches, dtype=np.int64)  # first keys that a branch has in common with the one before it
    for b in range(1, branches):
        start_B[b] = start_B[b - 1] + roots.num_keys_B[b - 1]
        for i in range(min(roots.num_keys_B[b - 1], roots.num_keys_B[b])):
            if roots.key_slots[start_B[b - 1] + i] != roots.key_slots[start_B[b] + i]:
                break
            common_B[b] += 1
    hidden, lanes = np.empty(most_rows * shapes[0].hidden_size, dtype=np.float32), np.empty(LANES, dtype=np.float32)
    every_T = np.arange(most_rows)
    # `select_top` writes beyond its row
    logits = np.empty(count_tile_rows(most_rows) * len(head_bias) + LANES, dtype=np.float32)
    if len(roots.new_tokens) > 0:
        tokens_T, positions_T, slots_T, outputs_R, keys_T = _list_new(roots, start_B, common_B)
        compute_logits(
            shapes, layers, matrices, vectors, embedding, cos_sin, work, capacity, packed, slots, zeros,
            rounded, head, head_bias, num_outputs, num_pieces, head_rounded, kv,
            tokens_T, positions_T, slots_T, outputs_R, every_T[: len(tokens_T)],
            roots.key_slots, roots.free_slots, keys_T, hidden, logits,
        )  # fmt: skip
        row = len(outputs_R)
        for b in range(branches - 1, -1, -1):
            if roots.num_new_B[b] > 0:
                row -= 1
                select_top(
                    logits, row * len(head_bias), num_outputs, head_ids, lanes, roots.ids_BK[b], roots.logp_BK[b]
                )
    # the nodes whose children are drawn next: all roots, -1 - b of branch b, and then the nodes fed last
    frontier: Ints = -1 - np.arange(branches)
    count = fed = num_levels = 0
    parents_p = children_p = 0.0  # path probabilities of parents, and of the likeliest child of each
    last, rate = limits.depth_B.max(), limits.plain_rate
    extra_slots = np.empty(most_fed * max(last, 1), dtype=np.int64)
    for level in range(last):
        first, gain = count, 0.0
        for node in frontier:
            b = branch[node] if node >= 0 else -1 - node
            above = path_probability[node] if node >= 0 else np.float32(1.0)
            if level >= limits.depth_B[b] or limits.nodes_B[b] == 0 or above <= limits.floor_B[b]:
                continue
            ids_K = ids_FK[place[node]] if node >= 0 else roots.ids_BK[b]
            logp_K = logp_FK[place[node]] if node >= 0 else roots.logp_BK[b]
            temperature = sampling.temperature_T[b]
            num_candidates = filter_probabilities(
                logp_K, temperature, sampling.top_k_T[b], sampling.top_p_T[b], sampling.min_p_T[b], q_K
            )
            key, other = np.int32(0), np.int32(0)
            if kind == COUPLED:
                key, other = noise_key_of(choice.seeds_B[b], ends_B[b] + level)
            num_drawn = select_children(kind, ids_K, q_K, num_candidates, temperature == 0, key, other, ids_W, chance_W)
            likeliest = np.float32(0.0)
            for w in range(num_drawn):
                bucket = calibration_bucket(0, w, chance_W[w])
                probability = above * request_probability(
                    choice.hits, choice.trials, bucket, chance_W[w], choice.odds_BL[b]
                )
                if probability > limits.floor_B[b]:
                    branch[count], parent[count], token[count] = b, max(node, -1), ids_W[w]
                    path_probability[count], label[count], place[count] = probability, bucket, -1
                    gain += float(probability) - limits.node_cost
                    likeliest = max(likeliest, path_probability[count])
                    count += 1
            if likeliest > 0:
                parents_p, children_p = parents_p + float(above), children_p + float(likeliest)
        if count == first or gain < rate * limits.level_seconds:
            count = first
            break
        num_levels += 1
        raise_floors(branch[:count], path_probability[:count], limits.nodes_B, limits.total, limits.floor_B)
        if len(limits.seconds_N) > 0:
            best_rate = raise_floors_to_rate(
                branch[:count], path_probability[:count], limits.seconds_N, limits.least_seconds, limits.floor_B
            )
            rate = max(rate, best_rate)
        frontier = np.empty(count - first, dtype=np.int64)
        rows = 0
        for node in range(first, count):
            b = branch[node]
            if (
                path_probability[node] > limits.floor_B[b]
                and level + 1 < limits.depth_B[b]
                and ends_B[b] + level < max_positions
            ):
                frontier[rows] = node
                rows += 1
        fed_rows = select_fed_rows(
            path_probability[frontier[:rows]], path_probability[:count], children_p / parents_p, last - level - 1,
            branches, limits.total, limits.seconds_N, most_fed - fed,
        )  # fmt: skip
        frontier, rows = frontier[fed_rows], len(fed_rows)
        if rows == 0:
            break
        for row in range(rows):
            place[frontier[row]] = fed + row
        keys_T = _list_keys(roots, frontier, branch, parent, place, level + 1, start_B, common_B, extra_slots)
        compute_logits(
            shapes, layers, matrices, vectors, embedding, cos_sin, work, capacity, packed, slots, zeros,
            rounded, head, head_bias, num_outputs, num_pieces, head_rounded, kv,
            token[frontier], ends_B[branch[frontier]] + level, roots.free_slots[fed : fed + rows], every_T[:rows],
            every_T[:rows], roots.key_slots, extra_slots, keys_T, hidden, logits,
        )  # fmt: skip
        for row in range(rows - 1, -1, -1):
            select_top(
                logits, row * len(head_bias), num_outputs, head_ids, lanes, ids_FK[fed + row], logp_FK[fed + row]
            )
        fed += rows
    nodes = TreeNodes(branch[:count], parent[:count], token[:count], path_probability[:count], label[:count])
    is_kept = _select_worthwhile(nodes, limits)
    grouped, at = group_by_branch(nodes, is_kept, branches), np.zeros(branches, dtype=np.int64)
    for b in range(1, branches):
        at[b] = grouped.ends_B[b - 1]
    place_N = np.empty(len(grouped.path_probability_N), dtype=np.int64)
    for node in range(count):
        if is_kept[node]:
            place_N[at[branch[node]]] = place[node]
            at[branch[node]] += 1
    return ModelDrafts(grouped, place_N, ids_FK[:fed], logp_FK[:fed], num_levels)


@compiled
def _select_worthwhile(nodes: TreeNodes, limits: LevelLimits) -> npt.NDArray[np.bool_]:
    """Returns which nodes `select_likeliest` selects."""
    branches, count = len(limits.nodes_B), len(nodes.branch)
    is_kept = np.zeros(count, dtype=np.bool_)
    # Stable, so that of equals the earlier comes first: no child before its parent.
    best = np.argsort(-nodes.path_probability, kind="mergesort")
    left_B, within = limits.nodes_B.copy(), 0
    most = min(limits.total, len(limits.seconds_N) - 1) if len(limits.seconds_N) else limits.total
    for node in best:
        if left_B[nodes.branch[node]] > 0 and within < most:
            left_B[nodes.branch[node]] -= 1
            best[within] = node
            within += 1
    if len(limits.seconds_N) > 0:
        tokens = float(branches)
        best_rate = tokens / limits.seconds_N[0]
        for n in range(within):
            tokens += nodes.path_probability[best[n]]
            best_rate = max(best_rate, tokens / limits.seconds_N[n + 1])
        probability_N = nodes.path_probability[best[:within]]
        within = count_worthwhile(probability_N, branches, best_rate, limits.seconds_N, limits.keep_gain)
    for n in range(within):
        is_kept[best[n]] = True
    return is_kept


@compiled
def _list_new(roots: RootContexts, start_B: Ints, common_B: Ints) -> tuple[Ints, Ints, Slots, Ints, Records]:
    """Returns the new tokens, their positions and slots, the last ones of the branches, and the keys that they see."""
    num_tokens = len(roots.new_tokens)
    positions_T, slots_T = np.empty(num_tokens, dtype=np.int64), np.empty(num_tokens, dtype=np.int64)
    outputs_R, keys_T = np.empty(num_tokens, dtype=np.int64), np.empty(num_tokens, dtype=KEYS_RECORD)
    t = row = common = 0
    for b in range(len(start_B)):
        num_keys, num_new = roots.num_keys_B[b], roots.num_new_B[b]
        common = min(common, common_B[b])
        for count in range(num_keys - num_new + 1, num_keys + 1):
            keys = keys_T[t]
            positions_T[t], slots_T[t] = count - 1, roots.key_slots[start_B[b] + count - 1]
            keys.start, keys.count, keys.extra_start, keys.extra_count = start_B[b], count, ZERO, ZERO
            keys.common = min(count - 1, common)
            t, common = t + 1, num_keys
        if num_new > 0:
            outputs_R[row] = t - 1
            row += 1
    return roots.new_tokens, positions_T, slots_T, outputs_R[:row], keys_T


@compiled
def _list_keys(
    roots: RootContexts, nodes: Ints, branch: Ints, parent: Ints, place: Ints, depth: int, start_B: Ints,
    common_B: Ints, extra_slots: Slots,
) -> Records:  # fmt: skip
    """Returns which keys these nodes see: those of their branch's text, and those of the `depth` nodes down to each.

    *Mutates* `extra_slots`: the slots of the latter.
    """
    keys_T, used = np.empty(len(nodes), dtype=KEYS_RECORD), 0
    for row in range(len(nodes)):
        node = nodes[row]
        b, keys = branch[node], keys_T[row]
        keys.start, keys.count = start_B[b], roots.num_keys_B[b]
        keys.extra_start, keys.extra_count = used, depth
        keys.common = roots.num_keys_B[b] if row > 0 else ZERO
        for between in range(branch[nodes[row - 1]] + 1 if row > 0 else b, b + 1):
            keys.common = min(keys.common, common_B[between])
        for back in range(depth - 1, -1, -1):
            extra_slots[used + back] = roots.free_slots[place[node]]
            node = parent[node]
        used += depth
    return keys_T

"""Builds drafts from an n-gram table best-first: adds the most likely node of the batch while it raises the rate.

The result equals that of `build_levels`, which works level by level for any source. This is one compiled loop with a
heap, which looks up only contexts that are in a draft: for 16 branches it takes a third of the time. A test compares
the two.

Shapes: B branches, N nodes of all drafts, C candidates, O orders, Z salts, K stored tokens, W maximum children.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled, compiled_in_place
from decoding.noise import noise_key_of
from decoding.sampling_columns import SamplingColumns
from decoding.speculation.drafters.calibration import calibration_bucket, request_probability
from decoding.speculation.drafters.child_selection import COUPLED, filter_probabilities, select_children
from decoding.speculation.drafters.ngram_backoff import backoff_distribution
from decoding.speculation.drafters.ngram_hash_table import Counts, Keys, NGramEntries
from decoding.speculation.drafters.source import Floats, Ints


class TableLookup(NamedTuple):
    """An n-gram table and the contexts of the branches: the arguments of `backoff_distribution`."""

    entries: NGramEntries
    salts_BZ: Keys
    tails_BO: Ints
    least: int
    share_OZU: Counts
    only_longest: bool


class DraftLimits(NamedTuple):
    """Limits of the drafts of a round.

    nodes_B, depth_B   maximum nodes and depth of each branch
    total              maximum nodes over all branches
    width              maximum children of a node
    seconds_N          duration of the round with 0, 1, ..., total nodes
    corners_E          numbers of nodes between which it changes along a line; the last one is at least `total`
    keep_gain          share of what the best number of nodes gains that is enough, for fewer nodes
    """

    nodes_B: Ints
    depth_B: Ints
    total: int
    width: int
    seconds_N: Counts
    corners_E: Ints
    keep_gain: float


class TreeNodes(NamedTuple):
    """Nodes of all drafts as arrays `[N]`, most likely first; `parent` is an index into them, -1 for a root."""

    branch: Ints
    parent: Ints
    token: Ints
    path_probability: Floats
    label: Ints


@compiled
def build_best_first(
    lookup: TableLookup,
    limits: DraftLimits,
    kind: int,
    sampling: SamplingColumns,
    seeds_B: Keys,
    ends_B: Ints,
    hits: Counts,
    trials: Counts,
    odds_BL: Counts,
) -> GroupedNodes:
    """Returns the nodes that raise tokens per second, within the limits; of a branch the most likely first.

    `kind` is LIKELY or COUPLED, for which the target draws with `seeds_B` from the positions `ends_B` on. `hits`,
    `trials` and `odds_BL` are an `AcceptanceCalibration`'s.
    """
    branches, width = len(lookup.tails_BO), limits.width
    stored_tokens, orders = lookup.entries.ids_SK.shape[1], lookup.tails_BO.shape[1]
    most = limits.total
    branch, parent = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    token, label = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    path_probability, depth = np.empty(most, dtype=np.float32), np.empty(most, dtype=np.int64)
    tails_NO = np.empty((most, orders), dtype=np.int64)
    # Candidates: parent, token, bucket; their probability is in the heap. Every expanded node adds `width` at most.
    room = (branches + most) * width
    of_C, token_C, label_C = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64), np.empty(room, np.int64)
    ids_K, logp_K = np.empty(stored_tokens, dtype=np.int64), np.empty(stored_tokens, dtype=np.float32)
    q_K = np.empty(stored_tokens, dtype=np.float32)
    ids_W, chance_W = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.float32)
    # Numba infers the type of an empty list from the slice of a typed one.
    heap = [(np.float32(0.0), 0)][:0]
    remaining_B = limits.nodes_B.copy()
    least_seconds = np.inf  # that one more node takes
    for n in range(1, len(limits.seconds_N)):
        least_seconds = min(least_seconds, limits.seconds_N[n] - limits.seconds_N[n - 1])
    tokens = float(branches)
    best_rate, best_count = tokens / limits.seconds_N[0], 0
    count = candidates = 0
    next_root = -branches  # roots first: -1 - b is the root of branch b
    while True:
        if next_root == 0:  # all roots are expanded: the most likely candidate becomes a node if it raises the rate
            if count == most or len(heap) == 0:
                break
            # Of equal probabilities the smaller index: the candidate that was added first.
            negative, c = heappop(heap)
            if not _can_exceed(best_rate, tokens, count, float(-negative), limits.seconds_N, limits.corners_E):
                break  # a better candidate cannot follow: the heap gives falling probabilities
            parent_node = of_C[c]
            b = branch[parent_node] if parent_node >= 0 else -1 - parent_node
            if remaining_B[b] == 0:
                continue  # its branch is full; candidates of other branches may follow
            remaining_B[b] -= 1
            node = count
            branch[node], parent[node], token[node] = b, max(parent_node, -1), token_C[c]
            path_probability[node], label[node] = -negative, label_C[c]
            depth[node] = depth[parent_node] + 1 if parent_node >= 0 else 1
            tail_above_O = tails_NO[parent_node] if parent_node >= 0 else lookup.tails_BO[b]
            # one by one: the assignment of a slice brings its error messages, which take a second to compile
            for o in range(orders - 1):
                tails_NO[node, o] = tail_above_O[o + 1]
            tails_NO[node, orders - 1] = token_C[c]
            tokens, count = tokens + path_probability[node], count + 1
            if tokens / limits.seconds_N[count] > best_rate:
                best_rate, best_count = tokens / limits.seconds_N[count], count
            tail_O, level, parent_probability = tails_NO[node], depth[node], path_probability[node]
        else:
            node, b = next_root, -1 - next_root
            tail_O, level, parent_probability = lookup.tails_BO[b], 0, np.float32(1.0)
            next_root += 1
        if level >= limits.depth_B[b] or remaining_B[b] == 0 or count == most:
            continue
        entries, salts_Z, share_OZU = lookup.entries, lookup.salts_BZ[b], lookup.share_OZU
        trust = backoff_distribution(
            entries, salts_Z, tail_O, lookup.least, share_OZU, lookup.only_longest, ids_K, logp_K
        )
        temperature = sampling.temperature_T[b]
        num_candidates = filter_probabilities(
            logp_K, temperature, sampling.top_k_T[b], sampling.top_p_T[b], sampling.min_p_T[b], q_K
        )
        key, other = np.int32(0), np.int32(0)
        if kind == COUPLED:
            key, other = noise_key_of(seeds_B[b], ends_B[b] + level)
        num_drawn = select_children(kind, ids_K, q_K, num_candidates, temperature == 0, key, other, ids_W, chance_W)
        for w in range(num_drawn):
            bucket = calibration_bucket(trust, w, chance_W[w])
            # Rounded to float32 here, as the arrays of `build_levels` do: otherwise ties would be ordered differently.
            probability = np.float32(
                parent_probability * request_probability(hits, trials, bucket, chance_W[w], odds_BL[b])
            )
            if probability > best_rate * least_seconds:  # the rate to exceed only rises
                of_C[candidates], token_C[candidates], label_C[candidates] = node, ids_W[w], bucket
                heappush(heap, (-probability, candidates))
                candidates += 1
    count = count_worthwhile(path_probability[:best_count], branches, best_rate, limits.seconds_N, limits.keep_gain)
    nodes = TreeNodes(branch[:count], parent[:count], token[:count], path_probability[:count], label[:count])
    # here: each array that a compiled function returns to Python takes a microsecond
    return group_by_branch(nodes, np.ones(count, dtype=np.bool_), branches)


@compiled_in_place
def count_worthwhile(
    path_probability_N: Floats, branches: int, best_rate: float, seconds_N: Counts, keep_gain: float
) -> int:
    """Returns how many of these nodes, most likely first, are the fewest that gain `keep_gain` of what the best do.

    best_rate  tokens per second with the best number of them
    """
    count, tokens = 0, float(branches)
    plain_rate = tokens / seconds_N[0]
    # not more than the best, to which the sum may round up
    least_rate = min(best_rate, plain_rate + keep_gain * (best_rate - plain_rate))
    while count < len(path_probability_N) and tokens / seconds_N[count] < least_rate:
        tokens, count = tokens + path_probability_N[count], count + 1
    return count


@compiled_in_place
def _can_exceed(rate: float, tokens: float, count: int, probability: float, seconds_N: Counts, corners_E: Ints) -> bool:
    """Returns whether some more nodes of at most this probability can give more tokens per second than `rate`.

    Between corners both tokens and seconds change along lines, and so the rate of as many of the likeliest nodes is
    largest at a corner, or is the present one.
    """
    for corner in corners_E:
        most = min(corner, len(seconds_N) - 1)
        if most > count and tokens + probability * (most - count) > rate * seconds_N[most]:
            return True
    return False


class GroupedNodes(NamedTuple):
    """Nodes branch by branch, parents before children.

    ids_3N   token, parent's place within the draft (-1 for the root), and label
    ends_B   where the nodes of each branch end
    """

    ids_3N: Ints
    path_probability_N: Floats
    ends_B: Ints


@compiled
def group_by_branch(nodes: TreeNodes, is_kept_N: npt.NDArray[np.bool_], branches: int) -> GroupedNodes:
    """Returns the kept nodes branch by branch, within a branch in their order; the parents of each are kept too."""
    nodes_B, place_N = np.zeros(branches, dtype=np.int64), np.empty(len(is_kept_N), dtype=np.int64)
    for n in range(len(is_kept_N)):
        if is_kept_N[n]:
            place_N[n] = nodes_B[nodes.branch[n]]
            nodes_B[nodes.branch[n]] += 1
    ends_B = np.cumsum(nodes_B)
    ids_3N, path_probability_N = np.empty((3, ends_B[-1]), dtype=np.int64), np.empty(ends_B[-1], dtype=np.float32)
    for n in range(len(is_kept_N)):
        if is_kept_N[n]:
            b, parent = nodes.branch[n], nodes.parent[n]
            at = ends_B[b] - nodes_B[b] + place_N[n]
            ids_3N[0, at], ids_3N[2, at] = nodes.token[n], nodes.label[n]
            ids_3N[1, at] = place_N[parent] if parent >= 0 else -1
            path_probability_N[at] = nodes.path_probability[n]
    return GroupedNodes(ids_3N, path_probability_N, ends_B)

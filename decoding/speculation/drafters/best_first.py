"""Grows drafts from an n-gram table best-first: always the likeliest node of the whole batch next, while it pays.

What `grow` does level by level for any source, here in one compiled loop with a heap, node by node: no context is
looked up that is not in the draft. For 16 branches that takes a third of the time; a test holds the two equal.

Shapes: B branches, N nodes of all drafts, C candidates, O orders, Z salts, K kept tokens, W children of each at most.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.speculation.compiled import compiled
from decoding.speculation.drafters.calibration import calibrated, kind_of
from decoding.speculation.drafters.child_selection import COUPLED, Sampling, draw, temper
from decoding.speculation.drafters.ngram_backoff import blend_one
from decoding.speculation.drafters.ngram_hash_table import Counts, Entries, Keys
from decoding.speculation.drafters.source import Floats, Ints


class Asked(NamedTuple):
    """A table and where its branches stand. The arguments of `ngram_table.blend_one`."""

    entries: Entries
    salts_BZ: Keys
    tails_BO: Ints
    least: int
    share_OZ3: Counts
    only_longest: bool


class Limits(NamedTuple):
    """nodes_B, deepest_B   at most, of each branch
    total                of all
    width                children of a node at most
    base, row            seconds of the round without drafts, and of each node; 0 if nodes are free"""

    nodes_B: Ints
    deepest_B: Ints
    total: int
    width: int
    base: float
    row: float


class Grown(NamedTuple):
    """Arrays `[N]`, likeliest first; `parent` numbers the nodes in this order, -1 for an anchor."""

    branch: Ints
    parent: Ints
    token: Ints
    reach: Floats
    label: Ints


@compiled
def best_first(
    asked: Asked,
    limits: Limits,
    kind: int,
    sampling: Sampling,
    keys_BD2: npt.NDArray[np.int32],
    hits: Counts,
    trials: Counts,
) -> Grown:
    """Every node that raises tokens per second, likeliest first, within the limits. `kind` is LIKELY or COUPLED;
    `keys` are the target's own noise keys by depth, for COUPLED."""
    branches, width = len(asked.tails_BO), limits.width
    kept_tokens, orders = asked.entries.ids_SK.shape[1], asked.tails_BO.shape[1]
    most = limits.total
    branch, parent = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    token, label = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    reach, depth = np.empty(most, dtype=np.float32), np.empty(most, dtype=np.int64)
    tails_NO = np.empty((most, orders), dtype=np.int64)
    # candidates: whose child, which token, how likely
    room = (branches + most) * width
    of_C, token_C, label_C = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64), np.empty(room, np.int64)
    ids_K, logp_K = np.empty(kept_tokens, dtype=np.int64), np.empty(kept_tokens, dtype=np.float32)
    q_K = np.empty(kept_tokens, dtype=np.float32)
    ids_W, chance_W = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.float32)
    heap = [(np.float32(0.0), 0)][:0]
    left_B = limits.nodes_B.copy()
    tokens, seconds = float(branches), limits.base
    count = candidates = 0
    opened = -branches  # anchors first: -1 - b stands for branch b
    while True:
        if opened == 0:  # all anchors are: the likeliest candidate becomes a node, if it pays
            if count == most or len(heap) == 0:
                break
            negative, c = heappop(heap)
            if -negative * seconds <= tokens * limits.row:
                break
            parent_node = of_C[c]
            b = branch[parent_node] if parent_node >= 0 else -1 - parent_node
            if left_B[b] == 0:
                continue
            left_B[b] -= 1
            node = count
            branch[node], parent[node], token[node] = b, max(parent_node, -1), token_C[c]
            reach[node], label[node] = -negative, label_C[c]
            depth[node] = depth[parent_node] + 1 if parent_node >= 0 else 1
            above_O = tails_NO[parent_node] if parent_node >= 0 else asked.tails_BO[b]
            tails_NO[node, :-1], tails_NO[node, -1] = above_O[1:], token_C[c]
            tokens, seconds, count = tokens + reach[node], seconds + limits.row, count + 1
            tail_O, level, reached = tails_NO[node], depth[node], reach[node]
        else:
            node, b = opened, -1 - opened
            tail_O, level, reached = asked.tails_BO[b], 0, np.float32(1.0)
            opened += 1
        if level >= limits.deepest_B[b] or left_B[b] == 0:
            continue
        entries, salts_Z, share_OZ3 = asked.entries, asked.salts_BZ[b], asked.share_OZ3
        trust = blend_one(entries, salts_Z, tail_O, asked.least, share_OZ3, asked.only_longest, ids_K, logp_K)
        temperature = sampling.temperature_B[b]
        left = temper(logp_K, temperature, sampling.top_k_B[b], sampling.top_p_B[b], sampling.min_p_B[b], q_K)
        key, other = np.int32(0), np.int32(0)
        if kind == COUPLED:
            key, other = keys_BD2[b, level, 0], keys_BD2[b, level, 1]
        drawn = draw(kind, ids_K, q_K, left, temperature == 0, key, other, ids_W, chance_W)
        for w in range(drawn):
            guess = kind_of(trust, w, chance_W[w])
            chance = np.float32(reached * calibrated(hits, trials, guess, chance_W[w]))
            if chance * seconds > tokens * limits.row:  # the rate only rises from here on
                of_C[candidates], token_C[candidates], label_C[candidates] = node, ids_W[w], guess
                heappush(heap, (-chance, candidates))
                candidates += 1
    return Grown(branch[:count], parent[:count], token[:count], reach[:count], label[:count])

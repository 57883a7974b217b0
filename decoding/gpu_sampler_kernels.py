"""Triton kernels of the sampler: two passes over the logits, no noise in memory, no sort.

    collect   per part of a vocabulary: the best candidates by s + g, and what the sums of probabilities need
    rank      per part: how many ids, and how much probability, come before each of a row's best candidates
    choose    the first candidate that the filters keep: filters only remove ids, so it is the argmax of what they keep
    search    for rows of which no candidate is kept: the smallest logit that is, by bisection, then the argmax above it

Shapes: T rows, V vocabulary, P parts of a row (a power of two), C candidates of a part or a row.
s is the scaled logit of an id, g its noise (`decoding.noise`).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.0e38)
"""Below every finite sum; differences of it are numbers, other than those of -inf."""
NO_ID = tl.constexpr(2147483647)
NUM_PARAMS = tl.constexpr(6)
"""Words of a row's parameters: inverse temperature, top-k, top-p, log of min-p, and the two halves of its key."""


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * tl.full([], 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full([], 0xC2B2AE35, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def gumbel_noise(ids, first, second):
    """Returns the noise of token ids under a key, as `decoding.noise` defines it; the last places may differ."""
    bits = _mix(ids.to(tl.uint32) * tl.full([], 0x9E3779B1, tl.uint32) + first)
    bits = _mix(bits + second)
    low, high = (bits & 0xFFFF).to(tl.float32), (bits >> 16).to(tl.float32)
    u = (low + 0.5) * 2.3283064365386963e-10 + high * 1.52587890625e-05
    u = tl.minimum(u, 0.999999940395355)
    # -log(1 - u): a logarithm near 1 loses the digits that decide, those of small u; there the series has them
    series = 1.0 / 13
    for power in tl.static_range(12, 0, -1):
        series = series * u + 1.0 / power
    exponential = tl.where(u < 0.25, series * u, -tl.log(1.0 - u))
    return -tl.log(exponential)


@triton.jit
def _load_params(params_T6, row):
    at = params_T6 + row * NUM_PARAMS
    inverse = tl.load(at).to(tl.float32, bitcast=True)
    top_k = tl.load(at + 1)
    top_p = tl.load(at + 2).to(tl.float32, bitcast=True)
    log_min_p = tl.load(at + 3).to(tl.float32, bitcast=True)
    return inverse, top_k, top_p, log_min_p


@triton.jit
def _is_filtered(inverse, top_k, top_p, log_min_p):
    return (inverse != 0.0) & ((top_k > 0) | (top_p < 1.0) | (log_min_p > LOWEST))


@triton.jit
def _limit_ranks(top_k, top_p, total, vocab_size):
    """Returns how many ids, and how much mass, must be more than what comes before an id that is kept."""
    limit = tl.where(top_k > 0, tl.minimum(top_k, vocab_size), vocab_size)
    return limit, tl.where(top_p < 1.0, top_p * total, float("inf"))


@triton.jit
def _load_logits(logits, ids, is_inside):
    return tl.load(logits + ids, mask=is_inside, other=float("-inf")).to(tl.float32)


@triton.jit
def _scale(x, inverse):
    # a greedy row ranks its logits as they are
    return x * tl.where(inverse == 0.0, 1.0, inverse)


@triton.jit
def _perturb(scaled, ids, params_T6, row, inverse):
    at = params_T6 + row * NUM_PARAMS + 4
    first, second = tl.load(at).to(tl.uint32, bitcast=True), tl.load(at + 1).to(tl.uint32, bitcast=True)
    # -inf stays: no noise makes an impossible token possible
    return scaled + tl.where(inverse == 0.0, 0.0, gumbel_noise(ids, first, second))


@triton.jit
def collect_candidates(
    logits,
    params_T6,
    scores_TPC,
    ids_TPC,
    sums_TP4,
    vocab_size,
    stride,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
):
    """Writes of `SPAN` ids the C largest s + g, and maxima and sums: of logits, and of s."""
    row, part = tl.program_id(0), tl.program_id(1)
    inverse, _, _, _ = _load_params(params_T6, row)
    logits += row.to(tl.int64) * stride
    slot = tl.arange(0, C)
    scores, ids_C = tl.full([C], float("-inf"), tl.float32), tl.full([C], NO_ID, tl.int32)
    raw_max, max_s = tl.full([], LOWEST, tl.float32), tl.full([], LOWEST, tl.float32)
    raw_sum, sum_s = tl.full([], 0.0, tl.float32), tl.full([], 0.0, tl.float32)
    for start in range(part * SPAN, tl.minimum((part + 1) * SPAN, vocab_size), BLOCK):
        ids = start + tl.arange(0, BLOCK)
        is_inside = ids < vocab_size
        x = _load_logits(logits, ids, is_inside)
        s = _scale(x, inverse)
        new_max = tl.maximum(raw_max, tl.max(x, 0))
        raw_sum = raw_sum * tl.exp(raw_max - new_max) + tl.sum(tl.exp(x - new_max), 0)
        raw_max = new_max
        new_max = tl.maximum(max_s, tl.max(s, 0))
        sum_s = sum_s * tl.exp(max_s - new_max) + tl.sum(tl.exp(s - new_max), 0)
        max_s = new_max
        total = _perturb(s, ids, params_T6, row, inverse)
        best, least = tl.max(total, 0), tl.min(scores, 0)
        # after the first block a candidate is seldom replaced
        while best > least:
            best_id = tl.min(tl.where(total == best, ids, NO_ID), 0)
            place = tl.min(tl.where(scores == least, slot, C), 0)
            scores, ids_C = tl.where(slot == place, best, scores), tl.where(slot == place, best_id, ids_C)
            total = tl.where(ids == best_id, float("-inf"), total)
            best, least = tl.max(total, 0), tl.min(scores, 0)
    at = row * PARTS + part
    tl.store(scores_TPC + at * C + slot, scores)
    tl.store(ids_TPC + at * C + slot, ids_C)
    tl.store(sums_TP4 + at * 4, raw_max)
    tl.store(sums_TP4 + at * 4 + 1, raw_sum)
    tl.store(sums_TP4 + at * 4 + 2, max_s)
    tl.store(sums_TP4 + at * 4 + 3, sum_s)


@triton.jit
def _merge_sums(sums_TP4, row, offset: tl.constexpr, PARTS: tl.constexpr):
    """Returns maximum and sum of a row, relative to it, from those of its parts; always in the same order."""
    at = sums_TP4 + (row * PARTS + tl.arange(0, PARTS)) * 4 + offset
    maxima, sums = tl.load(at), tl.load(at + 1)
    largest = tl.max(maxima, 0)
    return largest, tl.sum(sums * tl.exp(maxima - largest), 0)


@triton.jit
def _merge_candidates(scores_TPC, ids_TPC, row, PARTS: tl.constexpr, C: tl.constexpr):
    """Returns the C best ids of a row, best first; of equal sums the smaller id."""
    index = row * PARTS * C + tl.arange(0, PARTS * C)
    scores, ids = tl.load(scores_TPC + index), tl.load(ids_TPC + index)
    slot = tl.arange(0, C)
    best_C = tl.full([C], NO_ID, tl.int32)
    for place in tl.static_range(C):
        best = tl.max(scores, 0)
        best_id = tl.min(tl.where(scores == best, ids, NO_ID), 0)
        best_C = tl.where(slot == place, best_id, best_C)
        scores = tl.where(ids == best_id, float("-inf"), scores)
    return best_C


@triton.jit
def rank_candidates(
    logits,
    params_T6,
    scores_TPC,
    ids_TPC,
    sums_TP4,
    masses_TPC,
    counts_TPC,
    vocab_size,
    stride,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
):
    """Writes, for each of a row's C best candidates, the mass and the number of the `SPAN` ids ranked before it.

    Ranked before is a larger s, or an equal one with a smaller id. Masses are relative to the row's largest s.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    inverse, top_k, top_p, log_min_p = _load_params(params_T6, row)
    if _is_filtered(inverse, top_k, top_p, log_min_p):
        ids_C = _merge_candidates(scores_TPC, ids_TPC, row, PARTS, C)
        largest, _ = _merge_sums(sums_TP4, row, 2, PARTS)
        logits += row.to(tl.int64) * stride
        s_C = _scale(_load_logits(logits, ids_C, ids_C < vocab_size), inverse)
        mass, count = tl.zeros([C], tl.float32), tl.zeros([C], tl.int32)
        for start in range(part * SPAN, tl.minimum((part + 1) * SPAN, vocab_size), BLOCK):
            ids = start + tl.arange(0, BLOCK)
            is_inside = ids < vocab_size
            s = _scale(_load_logits(logits, ids, is_inside), inverse)
            is_tied = (s[None, :] == s_C[:, None]) & (ids[None, :] < ids_C[:, None])
            is_before = ((s[None, :] > s_C[:, None]) | is_tied) & is_inside[None, :]
            mass += tl.sum(tl.where(is_before, tl.exp(s - largest)[None, :], 0.0), 1)
            count += tl.sum(is_before.to(tl.int32), 1)
        at = (row * PARTS + part) * C + tl.arange(0, C)
        tl.store(masses_TPC + at, mass)
        tl.store(counts_TPC + at, count)


@triton.jit
def choose_candidates(
    logits,
    params_T6,
    scores_TPC,
    ids_TPC,
    sums_TP4,
    masses_TPC,
    counts_TPC,
    top_TK,
    tokens_T,
    logsumexp_T,
    vocab_size,
    stride,
    num_top,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
):
    """Writes each row's token, -1 where the filters keep none of its candidates, and the log of its sum of exp(x)."""
    row = tl.program_id(0)
    inverse, top_k, top_p, log_min_p = _load_params(params_T6, row)
    raw_max, raw_sum = _merge_sums(sums_TP4, row, 0, PARTS)
    tl.store(logsumexp_T + row, raw_max + tl.log(raw_sum))
    slot = tl.arange(0, C)
    ids_C = _merge_candidates(scores_TPC, ids_TPC, row, PARTS, C)
    token = tl.min(tl.where(slot == 0, ids_C, NO_ID), 0)
    if _is_filtered(inverse, top_k, top_p, log_min_p):
        largest, total = _merge_sums(sums_TP4, row, 2, PARTS)
        at = row * PARTS * C + tl.arange(0, PARTS)[:, None] * C + slot[None, :]
        mass, count = tl.sum(tl.load(masses_TPC + at), 0), tl.sum(tl.load(counts_TPC + at), 0)
        if (top_k > 0) & (top_p < 1.0):
            # filters follow each other: top-p renormalises over what top-k has left
            rank = tl.arange(0, K)
            is_left = (rank < top_k) & (rank < num_top)
            top = tl.load(top_TK + row * num_top + rank, mask=is_left, other=float("-inf")).to(tl.float32)
            left = tl.sum(tl.where(is_left, tl.exp(top * inverse - largest), 0.0), 0)
            total = left
        s_C = _scale(_load_logits(logits + row.to(tl.int64) * stride, ids_C, ids_C < vocab_size), inverse)
        limit, max_mass = _limit_ranks(top_k, top_p, total, vocab_size)
        is_kept = (count < limit) & (mass < max_mass) & (s_C >= largest + log_min_p)
        is_kept = is_kept | (count == 0)
        place = tl.min(tl.where(is_kept & (ids_C < vocab_size), slot, C), 0)
        token = tl.min(tl.where(slot == place, ids_C, NO_ID), 0)
        # where more ids are left than were ranked here, `search_tokens` measures their mass
        is_known = (top_k <= num_top) | (top_p >= 1.0) | (num_top == vocab_size)
        token = tl.where((place < C) & is_known, token, -1)
    tl.store(tokens_T + row, token.to(tl.int64))


@triton.jit
def _to_float(order):
    """Returns the float32 at a place in the order of all floats; `order` is an int32 that rises with them."""
    return tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)


@triton.jit
def _measure_above(logits, inverse, threshold, largest, vocab_size, BLOCK: tl.constexpr):
    """Returns number and mass of the ids with s above a threshold."""
    count, mass = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        s = _scale(_load_logits(logits, ids, ids < vocab_size), inverse)
        count += tl.sum((s > threshold).to(tl.int32), 0)
        mass += tl.sum(tl.where(s > threshold, tl.exp(s - largest), 0.0), 0)
    return count, mass


@triton.jit
def _find_border(logits, inverse, largest, max_count, max_mass, least, vocab_size, BLOCK: tl.constexpr):
    """Returns the smallest s that is kept, and number and mass of the ids above it.

    An s is kept if fewer than `max_count` ids and less than `max_mass` lie above it, and it is not below `least`.
    The largest s is kept always.
    """
    bits = largest.to(tl.int32, bitcast=True)
    high = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    low = tl.full([], -2139095041, tl.int32)  # below -inf in this order
    while low + 1 < high:
        # halves first: the difference of the two overflows
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        count, mass = _measure_above(logits, inverse, _to_float(middle), largest, vocab_size, BLOCK)
        is_kept = (count < max_count) & (mass < max_mass) & (_to_float(middle) >= least)
        low, high = tl.where(is_kept, low, middle), tl.where(is_kept, middle, high)
    border = _to_float(high)
    count, mass = _measure_above(logits, inverse, border, largest, vocab_size, BLOCK)
    return border, count, mass


@triton.jit
def search_tokens(logits, params_T6, sums_TP4, tokens_T, vocab_size, stride, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Writes the token of the rows that have -1. Bounded: about 70 passes over a row, whatever its filters."""
    row = tl.program_id(0)
    if tl.load(tokens_T + row) < 0:
        inverse, top_k, top_p, log_min_p = _load_params(params_T6, row)
        largest, total = _merge_sums(sums_TP4, row, 2, PARTS)
        logits += row.to(tl.int64) * stride
        limit, max_mass = _limit_ranks(top_k, top_p, total, vocab_size)
        if (top_k > 0) & (top_p < 1.0):
            border, count, mass = _find_border(logits, inverse, largest, limit, float("inf"), LOWEST, vocab_size, BLOCK)
            max_mass = top_p * (mass + (limit - count).to(tl.float32) * tl.exp(border - largest))
        border, count, mass = _find_border(
            logits, inverse, largest, limit, max_mass, largest + log_min_p, vocab_size, BLOCK
        )
        # of equal s at the border the smaller ids are kept, as many as both filters leave
        num_tied = (limit - count).to(tl.float32)
        num_tied = tl.minimum(num_tied, tl.ceil((max_mass - mass) / tl.exp(border - largest)))
        best, token = tl.full([], float("-inf"), tl.float32), tl.full([], NO_ID, tl.int32)
        before = tl.full([], 0, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            is_inside = ids < vocab_size
            s = _scale(_load_logits(logits, ids, is_inside), inverse)
            is_tied = ((s == border) & is_inside).to(tl.int32)
            rank = before + tl.cumsum(is_tied, 0) - is_tied
            is_kept = (s > border) | ((is_tied == 1) & (rank.to(tl.float32) < tl.maximum(num_tied, 1.0)))
            total_s = tl.where(is_kept & is_inside, _perturb(s, ids, params_T6, row, inverse), float("-inf"))
            block_best = tl.max(total_s, 0)
            block_id = tl.min(tl.where(total_s == block_best, ids, NO_ID), 0)
            token, best = tl.where(block_best > best, block_id, token), tl.maximum(best, block_best)
            before += tl.sum(is_tied, 0)
        tl.store(tokens_T + row, token.to(tl.int64))

"""A Triton kernel that cuts the items of a plan into splits of their keys, so that the host sends a row for each item.

Imports triton: import this module only where segments are attended to.
"""

from __future__ import annotations

import triton
import triton.language as tl

# columns of `SegmentItems`, and in the plan one more: the number of splits up to the end of the item
_COLUMNS, _PLAN_COLUMNS, _END = tl.constexpr(7), tl.constexpr(8), tl.constexpr(7)
_FIRST_ROW, _NUM_ROWS = tl.constexpr(0), tl.constexpr(1)
_FIRST_KEY, _NUM_KEYS = tl.constexpr(2), tl.constexpr(3)
_CAUSAL_OFFSET, _FIRST_WORD, _ORDER = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)


@triton.jit(do_not_specialize=["num_items", "num_steps", "num_splits"])
def cut_items(items, splits, num_items, num_steps, num_splits, SPLIT_KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes BLOCK splits, int32 `[num_splits, 7]`: the items that `compute_partials` reads; grid (blocks).

    items      int32 [num_items, 8]; those that fill up a graph are at the end, with no splits
    num_steps  halvings of `num_items` until nothing is left

    Splits after those of all items have no rows and no keys.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_split = at < num_splits
    # the number of items that end at or before this split: a binary search of each
    low = tl.zeros([BLOCK], tl.int32)
    high = low + num_items
    for _ in range(num_steps):
        middle = (low + high) // 2
        is_open = low < high
        end = tl.load(items + middle * _PLAN_COLUMNS + _END, mask=is_split & is_open, other=0)
        is_after = is_open & (end <= at)
        high = tl.where(is_open & (end > at), middle, high)
        low = tl.where(is_after, middle + 1, low)
    is_real = is_split & (low < num_items)
    item = items + low * _PLAN_COLUMNS
    start = tl.load(item - _PLAN_COLUMNS + _END, mask=is_real & (low > 0), other=0)
    split = at - start
    first = split * SPLIT_KEYS
    num_keys = tl.minimum(tl.load(item + _NUM_KEYS, mask=is_real, other=0) - first, SPLIT_KEYS)
    out = splits + at * _COLUMNS
    tl.store(out + _FIRST_ROW, tl.load(item + _FIRST_ROW, mask=is_real, other=0), mask=is_split)
    tl.store(out + _NUM_ROWS, tl.load(item + _NUM_ROWS, mask=is_real, other=0), mask=is_split)
    tl.store(out + _FIRST_KEY, tl.load(item + _FIRST_KEY, mask=is_real, other=0) + first, mask=is_split)
    tl.store(out + _NUM_KEYS, tl.where(is_real, num_keys, 0), mask=is_split)
    tl.store(out + _CAUSAL_OFFSET, tl.load(item + _CAUSAL_OFFSET, mask=is_real, other=0) - first, mask=is_split)
    tl.store(out + _FIRST_WORD, tl.load(item + _FIRST_WORD, mask=is_real, other=-1), mask=is_split)
    tl.store(out + _ORDER, tl.load(item + _ORDER, mask=is_real, other=0) + split, mask=is_split)

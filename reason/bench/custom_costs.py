"""Estimates what the project's own operators do on a CUDA device. An operator without an entry is refused.

An entry is needed for every operator that is registered outside torch: on the meta device it is one call, and nothing
but its author's word says what it launches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload

from decoding.model.segment_attention import PLAN_COLUMNS, KernelBlocks
from decoding.model.segments import SegmentItems
from reason.bench.operator_costs import (
    OperatorCost,
    TensorRead,
    Values,
    as_tensor,
    count_bytes,
    iter_tensors,
    read_whole,
    topk_cost,
)


class UnknownOperator(ValueError):
    """An operator whose cost is not known: it belongs to no namespace of torch and has no entry in the table."""


class HostValues:
    """Remembers what was copied to the meta device, so that the values of a plan can be read there."""

    def __init__(self) -> None:
        # the copies are held as well: a freed storage's address may be given to another
        self._sources: dict[int, tuple[Tensor, Tensor]] = {}

    def remember_copy(self, target: Tensor, source: Tensor) -> None:
        """Records that `target` has the values that `source` has now. *Mutates*."""
        if target.dtype == source.dtype and target.is_contiguous() and target.storage_offset() == 0:
            self._sources[target.untyped_storage()._cdata] = target, source.clone()

    def read_values(self, tensor: Tensor) -> Tensor:
        """Returns the values of a contiguous tensor. Raises: ValueError where they were not copied from the host."""
        key = tensor.untyped_storage()._cdata
        if key not in self._sources or not tensor.is_contiguous():
            raise ValueError("the values of a tensor on the meta device are not known: it is no copy from the host")
        first = tensor.storage_offset() * tensor.element_size()
        words = self._sources[key][1].reshape(-1).view(torch.uint8)[first : first + tensor.nbytes]
        return words.view(tensor.dtype).reshape(tensor.shape)


CustomCost = Callable[[Values, tuple[Tensor, ...], HostValues], OperatorCost]
"""Takes the arguments and the results of a call, and the values that are known."""


def _cost_of_segments(args: Values, results: tuple[Tensor, ...], known: HostValues) -> OperatorCost:
    """Returns the cost of `decoding::attend_segments`: two kernels.

    Each item reads its own rows and keys, also where items of the same keys follow each other and find them in the
    cache; of a table of keys nothing else is read. Products are those of whole tiles. Partial results are written by
    one kernel and read by the other.
    """
    query, kv, items, keys, first_partial, words = (as_tensor(value) for value in args[:6])
    num_partials = args[6]
    assert isinstance(num_partials, int)
    _, num_heads, head_size = query.shape
    num_kv_heads = kv.shape[0]
    columns = known.read_values(items).reshape(-1, len(SegmentItems._fields)).sum(dim=0).tolist()
    num_rows, num_keys = (columns[SegmentItems._fields.index(name)] for name in ("num_rows", "num_keys"))
    partials = num_partials * num_heads * (head_size + 1) * 4
    reads = (
        TensorRead(query, num_rows * num_heads * head_size * query.element_size()),
        TensorRead(kv, num_keys * num_kv_heads * 2 * head_size * kv.element_size()),
        TensorRead(keys, num_keys * keys.element_size()),
        *read_whole([items, first_partial, words]),
    )
    tile = KernelBlocks.for_heads(num_heads // num_kv_heads, head_size, query.dtype).queries
    flops = 4 * tile * num_kv_heads * head_size * num_keys
    # partial results twice: written, and read again
    return OperatorCost(2, reads, 2 * partials + count_bytes(results[0]), flops)


def _cost_of_cut(args: Values, results: tuple[Tensor, ...], known: HostValues) -> OperatorCost:
    """Returns the cost of `decoding::cut_items`, and makes known how many rows and keys its splits have."""
    items, _, split_keys = args
    assert isinstance(split_keys, int)
    rows = known.read_values(as_tensor(items)).reshape(-1, PLAN_COLUMNS).numpy()
    ends = rows[:, -1]
    counts = np.diff(ends, prepend=0)
    splits = np.repeat(rows[:, :-1], counts, axis=0)
    first = (np.arange(len(splits)) - np.repeat(ends - counts, counts)) * split_keys
    num_keys = SegmentItems._fields.index("num_keys")
    splits[:, num_keys] = np.minimum(splits[:, num_keys] - first, split_keys)
    known.remember_copy(results[0], torch.from_numpy(splits.reshape(-1)))
    return OperatorCost(1, read_whole([as_tensor(items)]), count_bytes(results[0]))


def _cost_of_sampling(args: Values, results: tuple[Tensor, ...], known: HostValues) -> OperatorCost:
    """Returns the cost of `decoding::sample_tokens`.

    Two kernels, four and a second pass over the logits where a filter is on, and a selection of the largest logits
    where top-p follows top-k. Candidates are not counted: they are a hundredth of the logits.
    """
    logits, params, is_filtered, num_top = args
    logits = as_tensor(logits)
    passes = 2 if is_filtered else 1
    launches = 4 if is_filtered else 2
    reads = [TensorRead(logits, passes * count_bytes(logits)), *read_whole([as_tensor(params)])]
    if num_top:
        selection = topk_cost(logits, 0)
        launches, reads = launches + selection.launches, [*reads, *selection.reads]
    return OperatorCost(launches, tuple(reads), sum(map(count_bytes, results)))


def _cost_of_one_kernel(args: Values, results: tuple[Tensor, ...], known: HostValues) -> OperatorCost:
    """Returns the cost of an operator of `decoding.model.layer_operators` that reads and writes whole tensors."""
    return OperatorCost(1, read_whole(iter_tensors(list(args))), sum(map(count_bytes, results)))


def _cost_of_rows_product(args: Values, results: tuple[Tensor, ...], known: HostValues) -> OperatorCost:
    """Returns the cost of `decoding::multiply_rows`; products are those of real rows, as of the library's products."""
    x = as_tensor(args[0])
    size = sum(map(count_bytes, results))
    return OperatorCost(1, read_whole(iter_tensors(list(args))), size, 2 * results[0].numel() * x.shape[1])


def _cost_of_rotation(args: Values, results: tuple[Tensor, ...], known: HostValues) -> OperatorCost:
    """Returns the cost of `decoding::rotate_and_store`: of the pool it writes a key and a value per row."""
    pool = as_tensor(args[6])
    numbers = as_tensor(args[0]).shape[0] * pool.shape[0] * pool.shape[2]
    reads = read_whole(iter_tensors(list(args[:6])))
    return OperatorCost(1, reads, count_bytes(results[0]) + numbers * pool.element_size())


CUSTOM_OPERATORS: dict[str, CustomCost] = {
    "decoding::add_and_norm": _cost_of_one_kernel,
    "decoding::attend_segments": _cost_of_segments,
    "decoding::cut_items": _cost_of_cut,
    "decoding::multiply_by_silu": _cost_of_one_kernel,
    "decoding::multiply_rows": _cost_of_rows_product,
    "decoding::norm": _cost_of_one_kernel,
    "decoding::rotate_and_store": _cost_of_rotation,
    "decoding::sample_tokens": _cost_of_sampling,
}
"""Costs by `namespace::name`."""


def estimate_custom(operator: OpOverload, args: Values, results: tuple[Tensor, ...], known: HostValues) -> OperatorCost:
    """Returns the cost of one call of an operator outside torch. Raises: UnknownOperator without an entry for it."""
    name = f"{operator.namespace}::{operator.overloadpacket.__name__}"
    if name not in CUSTOM_OPERATORS:
        entries = ", ".join(CUSTOM_OPERATORS)
        raise UnknownOperator(f"the cost of operator {name} is not known: CUSTOM_OPERATORS has {entries} only")
    return CUSTOM_OPERATORS[name](args, results, known)

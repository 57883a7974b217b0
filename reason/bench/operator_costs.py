"""Estimates what one operator of torch does on a CUDA device: kernels launched, bytes moved, operations computed.

Only products have operations: everything else is bound by memory on every card. Sizes come from shapes and strides; no
value is read, so tensors may be on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

Values = Sequence[object]
Options = Mapping[str, object]


class TensorRead(NamedTuple):
    """A tensor that a kernel reads, and the bytes that it reads of it."""

    tensor: Tensor
    size_bytes: int


@dataclass(frozen=True)
class OperatorCost:
    """What one call of an operator takes.

    launches  kernels; the copy that a product makes of a full-size addend is one of them
    reads     bytes by tensor, so that the weights among them can be told apart
    """

    launches: int
    reads: tuple[TensorRead, ...]
    bytes_written: int
    flops: int = 0

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_written + sum(read.size_bytes for read in self.reads)


CostFunction = Callable[[Values, Options, Sequence[Tensor]], OperatorCost]
"""Takes the positional arguments, the keyword arguments and the results of a call, all tensors on the meta device."""

_FREE = {"empty", "empty_strided", "empty_like", "new_empty", "detach_", "resize_", "set_"}
_WRITE_ONLY = {"copy_", "fill_", "zero_"}  # in place, but the old values are not read
_SELECTIONS = {"index_select": (2,), "gather": (2,), "embedding": (1,), "index": (1,), "take_along_dim": (1,)}
"""Operators that read only what they select: the places of their index arguments."""
_UPDATES = {"index_copy_": (2, 3), "scatter_": (2, 3), "_index_put_impl_": (1, 2), "index_add_": (2, 3)}
"""Operators that write only the places that they are given: the places of their index and source arguments."""


def iter_tensors(value: object) -> Iterator[Tensor]:
    """Yields the tensors in an argument or a result, in lists and tuples too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iter_tensors(item)


def count_bytes(tensor: Tensor) -> int:
    """Returns the bytes that reading a tensor takes; a dimension that repeats the same memory counts once."""
    numbers = tensor.numel()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride == 0 and size > 1:
            numbers //= size
    return numbers * tensor.element_size()


def is_free(operator: OpOverload) -> bool:
    """Returns whether an operator launches nothing: views, changes of metadata, memory that is not written."""
    return (
        operator.is_view or operator.overloadpacket.__name__ in _FREE or torch.Tag.inplace_view in tuple(operator.tags)
    )


def estimate_operator(operator: OpOverload, args: Values, kwargs: Options, results: Sequence[Tensor]) -> OperatorCost:
    """Returns the cost of one call of an operator of torch."""
    name = operator.overloadpacket.__name__
    if name in _PRODUCTS:
        return _PRODUCTS[name](args, kwargs, results)
    if name in _SELECTIONS:
        return _cost_of_selection(args, results, _SELECTIONS[name])
    if name in _UPDATES:
        return _cost_of_update(args, _UPDATES[name])
    if name == "topk":
        return topk_cost(as_tensor(args[0]), sum(map(count_bytes, results)))
    if name == "sort":
        return _cost_of_sort(args, results)
    reads = read_whole(_read_arguments(operator, args, kwargs))
    return OperatorCost(1, reads, sum(map(count_bytes, results)))


def read_whole(tensors: Iterable[Tensor]) -> tuple[TensorRead, ...]:
    """Returns reads of all of each tensor."""
    return tuple(TensorRead(tensor, count_bytes(tensor)) for tensor in tensors)


def _read_arguments(operator: OpOverload, args: Values, kwargs: Options) -> Iterator[Tensor]:
    """Yields the tensors that are read: not `out=`, and not the target of an operator that only writes."""
    first = 1 if operator.overloadpacket.__name__ in _WRITE_ONLY else 0
    for value in args[first:]:
        yield from iter_tensors(value)
    outputs = {argument.name for argument in operator._schema.arguments if argument.is_out}
    for key, value in kwargs.items():
        if key not in outputs:
            yield from iter_tensors(value)


def as_tensor(value: object) -> Tensor:
    """Returns an argument that is a tensor."""
    assert isinstance(value, Tensor)
    return value


def _cost_of_product(args: Values, kwargs: Options, results: Sequence[Tensor]) -> OperatorCost:
    left, right = as_tensor(args[0]), as_tensor(args[1])
    return OperatorCost(1, read_whole([left, right]), count_bytes(results[0]), 2 * results[0].numel() * left.shape[-1])


def _cost_of_sum_product(args: Values, kwargs: Options, results: Sequence[Tensor]) -> OperatorCost:
    """Returns the cost of `addend + left @ right`.

    A vector is added by the product itself. Any other addend is first copied to the result, which the product reads and
    overwrites (aten/src/ATen/native/cuda/Blas.cpp). With `beta=0` it is not read at all.
    """
    product = _cost_of_product(args[1:], kwargs, results)
    addend, size = as_tensor(args[0]), count_bytes(results[0])
    if kwargs.get("beta", 1) == 0:
        return product
    reads = (*product.reads, TensorRead(addend, count_bytes(addend)))
    if addend.dim() == 1 and results[0].dim() == 2:
        return OperatorCost(1, reads, size, product.flops)
    # the copy writes the result, the product reads it and writes it again
    return OperatorCost(2, (*reads, TensorRead(results[0], size)), 2 * size, product.flops)


_PRODUCTS: dict[str, CostFunction] = {
    "mm": _cost_of_product,
    "bmm": _cost_of_product,
    "addmm": _cost_of_sum_product,
    "baddbmm": _cost_of_sum_product,
}


def _cost_of_selection(args: Values, results: Sequence[Tensor], places: tuple[int, ...]) -> OperatorCost:
    source = next(iter_tensors(args[0]))
    size = count_bytes(results[0])
    indices = [tensor for place in places if place < len(args) for tensor in iter_tensors(args[place])]
    return OperatorCost(1, (TensorRead(source, size), *read_whole(indices)), size)


def _cost_of_update(args: Values, places: tuple[int, ...]) -> OperatorCost:
    target = as_tensor(args[0])
    tensors = [tensor for place in places if place < len(args) for tensor in iter_tensors(args[place])]
    return OperatorCost(1, read_whole(tensors), max(t.numel() for t in tensors) * target.element_size())


def topk_cost(values: Tensor, bytes_written: int) -> OperatorCost:
    """Returns the cost of a radix selection (cuda/TensorTopK.cu): 8 bits a pass, two kernels each, then a gather."""
    passes = values.element_size() + 1
    return OperatorCost(2 * passes + 1, (TensorRead(values, passes * count_bytes(values)),), bytes_written)


def _cost_of_sort(args: Values, results: Sequence[Tensor]) -> OperatorCost:
    """Returns the cost of a radix sort of values with 64-bit ids (cuda/SortStable.cu): 8 bits a pass.

    Each pass reads and writes both. Under 128 rows everything is sorted twice: by value, then by row. The number of
    launches is about right.
    """
    values = next(value for value in iter_tensors(list(args)))
    rows = values.numel() // max(1, values.shape[-1])
    passes = values.element_size() * (2 if rows < 128 else 1)
    size = sum(map(count_bytes, results))
    return OperatorCost(2 + 2 * passes, (TensorRead(values, passes * size),), passes * size)

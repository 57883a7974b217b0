"""Gives products one order of summation in Triton's interpreter, as the tensor cores of a GPU have one.

The interpreter multiplies tiles with NumPy's library, whose sums depend on the place of a row within its tile: OpenBLAS
computes six rows of a tile in one way and the next six in another. A GPU does not. So bits of interpreted
kernels are compared within `ordered_products`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def ordered_products() -> Iterator[None]:
    """Makes the interpreter add up each number of a product one input after the other, in all threads meanwhile."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        total = np.zeros_like(d.data)
        for k in range(a.data.shape[1]):
            # both rounded at once per number: NumPy's operations by element have the same result in every place
            total += np.multiply(a.data[:, k, None], b.data[None, k], dtype=total.dtype)
        return TensorHandle(total + d.data, d.dtype.scalar)

    before = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = create_dot
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = before

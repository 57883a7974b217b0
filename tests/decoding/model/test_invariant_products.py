"""A row of an invariant product has the same bits alone, in every batch and at every place, and is near float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.model.invariant_products import ProductTile, multiply_rows, require_stable_products
from decoding.triton_interpreter import ordered_products
from tests.support.kernels import IS_INTERPRETED, KERNEL_DEVICE

DTYPES = [torch.float32, torch.float16] if IS_INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of a result, relative to the sum of its products' magnitudes for float32, to the number itself after rounding."""


@pytest.fixture(autouse=True)
def fixed_order() -> Iterator[None]:
    with ordered_products() if IS_INTERPRETED else nullcontext():
        yield


def draw(seed: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=KERNEL_DEVICE, dtype=dtype)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    num_rows=st.integers(1, 70),
    inputs=st.sampled_from((1, 30, 64, 100)),
    outputs=st.sampled_from((1, 64, 97)),
    dtype=st.sampled_from(DTYPES),
    is_transposed=st.booleans(),
    has_bias=st.booleans(),
    in_float32=st.booleans(),
)
def test_a_row_has_its_bits_in_every_batch(
    seed: int, num_rows: int, inputs: int, outputs: int, dtype: torch.dtype,
    is_transposed: bool, has_bias: bool, in_float32: bool,
) -> None:  # fmt: skip
    x, weight = draw(seed, dtype, num_rows, inputs), draw(seed + 1, dtype, inputs, outputs)
    if is_transposed:
        weight = weight.t().contiguous().t()
    bias = draw(seed + 2, dtype, outputs) if has_bias else None
    got = multiply_rows(x, weight, bias, in_float32=in_float32)
    assert got.dtype == (torch.float32 if in_float32 else dtype)
    exact = x.double() @ weight.double() + (0 if bias is None else bias.double())
    magnitude = x.double().abs() @ weight.double().abs() + 1
    rounding = TOLERANCES[got.dtype] * exact.abs()
    assert ((got.double() - exact).abs() <= 1e-6 * magnitude + rounding).all()
    for row in {0, num_rows // 2, num_rows - 1}:
        alone = multiply_rows(x[row : row + 1], weight, bias, in_float32=in_float32)[0]
        assert torch.equal(alone, got[row])
    # at other places, among other rows
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed)).to(KERNEL_DEVICE)
    assert torch.equal(multiply_rows(x[order], weight, bias, in_float32=in_float32), got[order])


def test_no_rows_have_no_products() -> None:
    assert multiply_rows(draw(0, torch.float32, 0, 8), draw(1, torch.float32, 8, 5), None).shape == (0, 5)


def test_a_trace_sees_one_operator_of_the_right_shape() -> None:
    x, weight = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in ((7, 64), (64, 100)))
    assert multiply_rows(x, weight, None).shape == (7, 100)
    out = multiply_rows(x, weight, None, in_float32=True)
    assert (out.dtype, out.device.type) == (torch.float32, "meta")


def test_the_tile_depends_on_the_type_alone() -> None:
    assert ProductTile.for_dtype(torch.bfloat16) == ProductTile.for_dtype(torch.float16)
    assert ProductTile.for_dtype(torch.float32).rows % 16 == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_device_with_one_order_is_accepted(dtype: torch.dtype) -> None:
    require_stable_products(torch.device(KERNEL_DEVICE), dtype)


def test_a_device_whose_sums_depend_on_the_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def multiply_from_a_row_on(x: torch.Tensor, weight: torch.Tensor, *_: object, in_float32: bool) -> torch.Tensor:
        out = x @ weight
        out[6:] = (x.flip(1) @ weight.flip(0))[6:]  # the other order of the sum
        return out

    monkeypatch.setattr("decoding.model.invariant_products.multiply_rows", multiply_from_a_row_on)
    with pytest.raises(ValueError, match=r"numerics=invariant cannot run on this .*: the product of a row depends"):
        require_stable_products(torch.device(KERNEL_DEVICE), torch.float32)

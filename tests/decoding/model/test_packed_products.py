"""Packed products are those of PyTorch within rounding, and a row's bits do not depend on the other rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding.model.packed_products import MIN_PACKED_WEIGHTS, can_pack, multiply, multiply_and_add, pack_weight

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-1}
"""Of sums of up to 1,100 products of normal numbers."""


@pytest.fixture
def any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs also where it does not pay."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


def make_weight(depth: int, outputs: int, dtype: torch.dtype) -> Tensor:
    """`[in, out]`, as layers have it; skips where this machine does not pack."""
    weight = torch.randn(depth, outputs, generator=torch.Generator().manual_seed(depth)).to(dtype)
    if not can_pack(weight):
        pytest.skip(f"this PyTorch has no packed products in {dtype} on this CPU")
    return weight


@pytest.mark.usefixtures("any_cpu")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 64])
def test_packed_product_is_the_product(rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    weight = make_weight(1088, 320, dtype)
    x, residual = torch.randn(rows, 1088).to(dtype), torch.randn(rows, 320).to(dtype)
    bias = torch.randn(320).to(dtype) if has_bias else None
    packed = pack_weight(weight)
    product = x.double() @ weight.double() + (0 if bias is None else bias.double())
    assert packed.is_mkldnn
    torch.testing.assert_close(multiply(x, packed, bias).double(), product, atol=TOLERANCE[dtype], rtol=1e-2)
    total = multiply_and_add(residual, x, packed, bias).double()
    torch.testing.assert_close(total, product + residual.double(), atol=TOLERANCE[dtype], rtol=1e-2)


@pytest.mark.usefixtures("any_cpu")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("depth", "outputs"), [(896, 1152), (4864, 896), (2048, 151)])
def test_row_has_the_same_bits_in_any_number_of_rows(depth: int, outputs: int, dtype: torch.dtype) -> None:
    packed = pack_weight(make_weight(depth, outputs, dtype))
    x, residual = torch.randn(70, depth).to(dtype), torch.randn(70, outputs).to(dtype)
    whole, total = multiply(x, packed, None), multiply_and_add(residual, x, packed, None)
    for rows in (0, 1, 2, 3, 4, 5, 7, 16, 33, 64):
        assert torch.equal(multiply(x[:rows].clone(), packed, None), whole[:rows])
        assert torch.equal(multiply_and_add(residual[:rows].clone(), x[:rows].clone(), packed, None), total[:rows])


@pytest.mark.usefixtures("any_cpu")
@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(512, MIN_PACKED_WEIGHTS // 512 - 1),
        torch.zeros(512, MIN_PACKED_WEIGHTS // 512, dtype=torch.float64),
        torch.zeros(512, MIN_PACKED_WEIGHTS // 512, dtype=torch.float16),
        torch.zeros(512, MIN_PACKED_WEIGHTS // 512, device="meta"),
    ],
)
def test_others_stay_as_they_are(weight: Tensor) -> None:
    assert pack_weight(weight) is weight


@pytest.mark.usefixtures("any_cpu")
def test_without_the_operators_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    weight, x = torch.randn(512, 1024), torch.randn(2, 512)
    assert pack_weight(weight) is weight
    assert torch.equal(multiply(x, pack_weight(weight), None), x @ weight)


def test_nothing_is_packed_where_one_row_would_be_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    weight = torch.zeros(512, 1024)
    assert pack_weight(weight) is weight

"""Each operator of a layer equals PyTorch's own operations, touches nothing else, and gives a row its bits alone."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding.model.layer_operators import add_and_norm, multiply_by_silu, rotate_and_store
from tests.support.kernels import IS_INTERPRETED, KERNEL_DEVICE

EPS, NUM_SLOTS = 1e-5, 11
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3}
"""Of numbers near 1, and relative to larger ones. Results are rounded once: by half a unit in the last place."""
if not IS_INTERPRETED:  # the interpreter cuts numbers to bfloat16 and does not round them
    TOLERANCES[torch.bfloat16] = 8e-3

few_rows = st.integers(1, 6)
seeds = st.integers(0, 2**16)
dtypes = st.sampled_from(sorted(TOLERANCES, key=str))


class Heads(NamedTuple):
    """Heads of a model, and which parts it has: biases as in Qwen2, norms per head as in Qwen3."""

    kv_heads: int
    queries: int
    size: int
    has_bias: bool
    has_norm: bool


HEADS = st.builds(
    Heads, st.integers(1, 3), st.integers(1, 7), st.sampled_from([12, 16, 64, 96, 128]), st.booleans(), st.booleans()
)


def draw(seed: int, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Random numbers of each shape."""
    generator = torch.Generator().manual_seed(seed)
    return [(3 * torch.randn(shape, generator=generator)).to(dtype).to(KERNEL_DEVICE) for shape in shapes]


def assert_near(got: Tensor, expected: Tensor) -> None:
    """`expected` is in float64, `got` in the dtype of the model."""
    tolerance = TOLERANCES[got.dtype]
    torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)


def norm_in_float64(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x.double(), weight.shape, weight.double(), EPS)


class RotationCase:
    """Rows of random q, k and v at random angles, with slots of their own in a pool that is otherwise NaN."""

    def __init__(self, seed: int, num_rows: int, heads: Heads, dtype: torch.dtype) -> None:
        width = heads.kv_heads * (heads.queries + 2) * heads.size
        self.heads = heads
        self.qkv, bias, q_norm, k_norm = draw(seed, dtype, (num_rows, width), (width,), (heads.size,), (heads.size,))
        self.bias = bias if heads.has_bias else None
        self.norms = (q_norm, k_norm) if heads.has_norm else None
        (angles,) = draw(seed + 1, torch.float32, (num_rows, heads.size // 2))
        sin = angles.sin()
        self.cos_sin = torch.stack([torch.cat([angles.cos()] * 2, 1), torch.cat([-sin, sin], 1)], dim=1)
        generator = torch.Generator().manual_seed(seed)
        self.slots = torch.randperm(NUM_SLOTS, generator=generator)[:num_rows].to(KERNEL_DEVICE)

    def run(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Queries and pool after some of the rows."""
        kv = self.qkv.new_full((self.heads.kv_heads, NUM_SLOTS, 2 * self.heads.size), torch.nan)
        inputs = self.qkv[rows].contiguous(), self.bias, self.norms, self.cos_sin[rows].contiguous()
        return rotate_and_store(*inputs, self.slots[rows].contiguous(), kv, EPS), kv

    def run_in_float64(self) -> tuple[Tensor, Tensor]:
        """The same by PyTorch."""
        k, size = self.heads.kv_heads, self.heads.size
        h = k * self.heads.queries
        numbers = self.qkv.double() if self.bias is None else self.qkv.double() + self.bias.double()
        numbers = numbers.view(len(self.qkv), -1, size)
        qk = numbers[:, : h + k]
        if self.norms is not None:
            qk = torch.cat([norm_in_float64(qk[:, :h], self.norms[0]), norm_in_float64(qk[:, h:], self.norms[1])], 1)
        cos_sin = self.cos_sin.double()
        first, second = qk.chunk(2, dim=-1)
        qk = qk * cos_sin[:, :1] + torch.cat([second, first], dim=-1) * cos_sin[:, 1:]
        kv = qk.new_full((k, NUM_SLOTS, 2 * size), torch.nan)
        kv[:, self.slots] = torch.cat([qk[:, h:], numbers[:, h + k :]], dim=-1).transpose(0, 1)
        return qk[:, :h], kv


@settings(max_examples=20, deadline=None)
@given(seed=seeds, num_rows=few_rows, size=st.integers(1, 300), dtype=dtypes)
def test_the_norm_is_that_of_the_written_sum(seed: int, num_rows: int, size: int, dtype: torch.dtype) -> None:
    x, delta, weight = draw(seed, dtype, (num_rows, size), (num_rows, size), (size,))
    total, normed = add_and_norm(x, delta, weight, EPS)
    assert torch.equal(total, x + delta)  # float32 sums, rounded once, as PyTorch's
    assert_near(normed, norm_in_float64(total, weight))
    same, alone = add_and_norm(total, None, weight, EPS)
    assert same is total
    assert torch.equal(alone, normed)
    for row in range(num_rows):
        one = add_and_norm(x[row : row + 1], delta[row : row + 1], weight, EPS)
        assert torch.equal(one[0][0], total[row])
        assert torch.equal(one[1][0], normed[row])


@settings(max_examples=20, deadline=None)
@given(seed=seeds, num_rows=few_rows, size=st.one_of(st.integers(1, 300), st.just(1500)), dtype=dtypes)
def test_the_gate_is_multiplied_in_float32(seed: int, num_rows: int, size: int, dtype: torch.dtype) -> None:
    (gate_up,) = draw(seed, dtype, (num_rows, 2 * size))
    gate, up = gate_up.double().chunk(2, dim=-1)
    out = multiply_by_silu(gate_up)
    assert_near(out, F.silu(gate) * up)
    for row in range(num_rows):
        assert torch.equal(multiply_by_silu(gate_up[row : row + 1])[0], out[row])


@pytest.mark.filterwarnings("ignore:overflow")  # of exp(-gate), in NumPy
def test_a_gate_far_from_zero_is_finite() -> None:
    gate_up = torch.tensor([[-200.0, 200.0, 2.0, 3.0]], device=KERNEL_DEVICE)
    assert torch.equal(multiply_by_silu(gate_up).cpu(), torch.tensor([[-0.0, 600.0]]))


@settings(max_examples=25, deadline=None)
@given(seed=seeds, num_rows=few_rows, heads=HEADS, dtype=dtypes)
def test_rotated_keys_reach_their_slots_and_no_other(
    seed: int, num_rows: int, heads: Heads, dtype: torch.dtype
) -> None:
    case = RotationCase(seed, num_rows, heads, dtype)
    q, kv = case.run()
    expected_q, expected_kv = case.run_in_float64()
    assert_near(q, expected_q)
    is_written = torch.zeros(NUM_SLOTS, dtype=torch.bool)
    is_written[case.slots.cpu()] = True
    assert_near(kv[:, is_written], expected_kv[:, is_written])
    assert kv[:, ~is_written].isnan().all()


@settings(max_examples=10, deadline=None)
@given(seed=seeds, num_rows=few_rows, heads=HEADS, dtype=dtypes)
def test_a_rotated_row_has_its_bits_alone(seed: int, num_rows: int, heads: Heads, dtype: torch.dtype) -> None:
    case = RotationCase(seed, num_rows, heads, dtype)
    q, kv = case.run()
    for row in range(num_rows):
        alone, own_kv = case.run(slice(row, row + 1))
        slot = case.slots[row]
        assert torch.equal(alone[0], q[row])
        assert torch.equal(own_kv[:, slot], kv[:, slot])


def test_operators_have_their_shapes_on_the_meta_device() -> None:
    x = torch.empty((5, 32), device="meta", dtype=torch.bfloat16)
    total, normed = add_and_norm(x, x, x[0], EPS)
    assert (total.shape, normed.shape, normed.dtype) == ((5, 32), (5, 32), torch.bfloat16)
    assert multiply_by_silu(x).shape == (5, 16)
    kv, cos_sin = torch.empty((1, 9, 16), device="meta"), torch.empty((5, 2, 8), device="meta")
    assert rotate_and_store(x, None, None, cos_sin, x[:, 0], kv, EPS).shape == (5, 2, 8)

"""Attention over segments equals a dense softmax in float64 and attention over blocks, and no other slot matters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from decoding.kv.shared_prefix import group_by_prefix
from decoding.model.attention import BlockAttention, DeviceBlock
from decoding.model.batch import pack_batch, pack_segments
from decoding.model.segment_attention import SegmentAttention, list_arrays, pick_tiles
from decoding.model.segments import SegmentPlan, SegmentTiles
from tests.support.kernels import IS_INTERPRETED, KERNEL_DEVICE
from tests.support.radix_rounds import Inputs, random_round, seen_slots

Array = npt.NDArray[np.floating[Any]]

NUM_SLOTS, SEED = 4000, 7
CPU = torch.device("cpu")


class Shape(NamedTuple):
    """A model's heads; the most tokens that a text adds to another, and nodes of a draft."""

    kv_heads: int
    queries: int
    head: int
    length: int
    nodes: int


SMALL = Shape(2, 3, 16, 40, 6)
SHAPES = [Shape(2, 1, 16, 120, 10), Shape(1, 3, 24, 30, 90), Shape(1, 7, 64, 80, 10)]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
if not IS_INTERPRETED:  # the interpreter multiplies the bits of bfloat16 numbers
    TOLERANCES[torch.bfloat16] = 2e-2


class Case:
    """A random round over random K and V; slots that no row sees are NaN."""

    def __init__(self, seed: int, shape: Shape, dtype: torch.dtype) -> None:
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.shape, self.dtype, self.scale = shape, dtype, shape.head**-0.5
        self.inputs = random_round(rng, 3, length=shape.length, nodes=shape.nodes, num_slots=NUM_SLOTS)
        tiles = pick_tiles(shape.queries, shape.head, dtype)
        # smaller splits, so that short contexts have several, and tiles that are not full
        self.tiles = SegmentTiles(max(1, tiles.num_rows - 1), 64)
        self.kv = torch.full((shape.kv_heads, NUM_SLOTS + 1, 2 * shape.head), torch.nan, dtype=dtype)
        self.queries: dict[int, Tensor] = {}
        for item in self.inputs:
            slots = sorted({slot for row in seen_slots(item) for slot in row})
            numbers = torch.randn((shape.kv_heads, len(slots), 2 * shape.head), generator=generator) + 0.5
            self.kv[:, slots] = torch.where(self.kv[:, slots].isnan(), numbers.to(dtype), self.kv[:, slots])
            heads = shape.kv_heads * shape.queries
            rows = 3 * torch.randn((item.num_tokens, heads, shape.head), generator=generator)
            self.queries[item.sequence.arrival] = rows.to(dtype)

    def rows_of(self, inputs: Inputs) -> Tensor:
        return torch.cat([self.queries[item.sequence.arrival] for item in inputs])

    def run_segments(self, inputs: Inputs) -> dict[int, Tensor]:
        """The output of each input, by arrival."""
        batch, ordered = pack_segments(inputs, self.tiles)
        plan = batch.segments
        assert plan is not None
        attention = place(plan, self.scale)
        # the heads of keys lie between the rows of queries, as they do in a layer
        queries = self.rows_of(ordered)
        strided = torch.cat([queries, torch.full_like(queries[:, :1], torch.nan)], dim=1).to(KERNEL_DEVICE)
        out = attention.attend(strided[:, :-1], self.kv.to(KERNEL_DEVICE)).cpu()
        return split(out, ordered)

    def run_dense(self) -> dict[int, Tensor]:
        """A softmax in float64 over the keys of each row."""
        outputs = {}
        for item in self.inputs:
            rows = []
            for q, slots in zip(self.queries[item.sequence.arrival].double(), seen_slots(item), strict=True):
                visible = self.kv[:, slots].double()
                k, v = (part.repeat_interleave(self.shape.queries, 0) for part in visible.chunk(2, dim=-1))
                weights = (torch.einsum("hd,hkd->hk", q, k) * self.scale).softmax(-1)
                rows.append(torch.einsum("hk,hkd->hd", weights, v).reshape(-1))
            outputs[item.sequence.arrival] = torch.stack(rows)
        return outputs

    def run_blocks(self) -> dict[int, Tensor]:
        """Attention over blocks, in float32."""
        groups = group_by_prefix([item.sequence for item in self.inputs])
        batch, ordered = pack_batch(self.inputs, groups)
        blocks = [
            DeviceBlock.from_block(
                block,
                num_kv_heads=self.shape.kv_heads,
                queries_per_kv=self.shape.queries,
                device=CPU,
                dtype=torch.float32,
            )
            for block in batch.blocks
        ]
        kv = self.kv.float().nan_to_num()  # padding reads the scratch slot
        return split(BlockAttention(blocks, self.scale).attend(self.rows_of(ordered).float(), kv), ordered)


def place(plan: SegmentPlan, scale: float) -> SegmentAttention:
    arrays = [torch.from_numpy(array).to(KERNEL_DEVICE) for array in list_arrays(plan)]
    return SegmentAttention.from_plan(plan, arrays, scale)


def multiply_in_order(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """The product of two matrices; each sum runs over the terms in their order."""
    product: Array = (a[:, :, None].astype(dtype) * b[None].astype(dtype)).sum(axis=1, dtype=dtype)
    return product


def split(out: Tensor, ordered: Inputs) -> dict[int, Tensor]:
    parts = torch.split(out, [item.num_tokens for item in ordered])
    return {item.sequence.arrival: part for item, part in zip(ordered, parts, strict=True)}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_equals_a_softmax_in_float64_and_attention_over_blocks(shape: Shape, dtype: torch.dtype) -> None:
    case = Case(SEED, shape, dtype)
    got, dense, blocks = case.run_segments(case.inputs), case.run_dense(), case.run_blocks()
    for arrival, rows in got.items():
        torch.testing.assert_close(rows.double(), dense[arrival], atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
        torch.testing.assert_close(rows.float(), blocks[arrival], atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_an_input_alone_has_the_bits_that_it_has_in_a_batch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if IS_INTERPRETED:  # with BLAS the bits of a row depend on its place in a matrix, with tensor cores they do not
        monkeypatch.setattr(np, "matmul", multiply_in_order)
    case = Case(SEED, SMALL, dtype)
    together = case.run_segments(case.inputs)
    for item in case.inputs:
        arrival = item.sequence.arrival
        assert torch.equal(case.run_segments([item])[arrival], together[arrival])


def test_rounds_have_drafts_of_more_than_64_nodes_chunks_and_shared_prefixes() -> None:
    """So the equalities are not those of simple batches."""
    inputs = [item for shape in SHAPES for item in Case(SEED, shape, torch.float32).inputs]
    assert any(len(item.draft) > 64 for item in inputs)
    assert any(item.num_committed > 64 for item in inputs)
    paths = [item.sequence.prefix_node.path_from_root() for item in inputs if item.sequence.prefix_node]
    assert max(map(len, paths)) > 1


def test_operator_has_its_shape_on_the_meta_device() -> None:
    attention = SegmentAttention([torch.empty(7, device="meta")] * 4, 3, 0.5)
    q, kv = torch.empty((5, 6, 16), device="meta", dtype=torch.bfloat16), torch.empty((2, 9, 32), device="meta")
    out = attention.attend(q, kv)
    assert (out.shape, out.dtype, out.device.type) == ((5, 96), torch.bfloat16, "meta")

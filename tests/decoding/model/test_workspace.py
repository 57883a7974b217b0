"""The estimate of what a round takes is above what it takes, and not far above."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from decoding.kv.pool_memory import pick_pool_bytes
from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import group_by_prefix
from decoding.model.batch import SequenceInput, pack_batch, pack_segments
from decoding.model.segments import SegmentTiles
from decoding.model.transformers_checkpoint import HFBackend
from decoding.model.workspace import DecoderSizes, RoundSize, count_partials, estimate_workspace
from tests.support.kernels import KERNEL_DEVICE
from tests.support.live_bytes import LiveBytes
from tests.support.radix_rounds import random_round
from tests.support.random_models import SHAPE

QWEN_7B = DecoderSizes(3584, 28, 4, 128, 18944, 152064, 2)


@pytest.mark.parametrize("attention", ["blocks", "segments"])
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_layers_and_logits_take_no_more_than_estimated(family: str, attention: str) -> None:
    """One token each of many branches: the keys of blocks, which are not estimated, are few then."""
    num_rows, sizes = 48, {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 700, "num_hidden_layers": 3}
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **sizes}, head_dim=32)
    backend = HFBackend(
        transformers.AutoModelForCausalLM.from_config(config),
        device=KERNEL_DEVICE, dtype="float32", decoder="eager", attention=attention, graphs="never",
    )  # fmt: skip
    sequences = [TokenSequence(i, (i, 1)) for i in range(num_rows)]
    inputs = []
    for i, sequence in enumerate(sequences):
        sequence.append_slots(np.array([2 * i + 1]))
        inputs.append(SequenceInput(sequence, 1, np.array([2 * i + 2]), 0))
    if backend.segment_tiles is not None:
        batch, _ = pack_segments(inputs, backend.segment_tiles)
    else:
        batch, _ = pack_batch(inputs, group_by_prefix(sequences))
    pool, largest = backend.new_kv_pool(200), RoundSize(num_rows, num_rows, 2)
    with torch.inference_mode():
        backend.forward(batch, pool)  # makes the table of rotations
        with LiveBytes() as memory:
            hidden = backend.forward(batch, pool)
            layers = memory.peak
            backend.apply_head(hidden)
    estimate = backend.estimate_workspace(largest, float_copies=0)
    assert layers <= estimate.layers <= 2.5 * layers
    assert memory.peak <= estimate.layers + estimate.logits
    assert estimate.logits == num_rows * 700 * 4


@pytest.mark.parametrize("seed", range(20))
def test_partial_results_are_no_more_than_estimated(seed: int) -> None:
    inputs = random_round(np.random.default_rng(seed), 12, length=90, nodes=9)
    batch, _ = pack_segments(inputs, SegmentTiles(8, 64))
    assert batch.segments is not None
    context = int(batch.positions_T.max()) + 1
    assert batch.segments.num_partials <= count_partials(RoundSize(len(batch.tokens_T), 0, context), 64)


def test_estimate_grows_with_every_part_of_a_round() -> None:
    def total(largest: RoundSize, *, float_copies: int = 0, split_keys: int | None = 256, graph_rows: int = 512) -> int:
        return estimate_workspace(
            QWEN_7B, largest, float_copies=float_copies, split_keys=split_keys, graph_rows=graph_rows
        ).total

    least = RoundSize(1280, 256, 4096)
    assert 1 << 30 < total(least) < 4 << 30
    for more in (RoundSize(2000, 256, 4096), RoundSize(1280, 500, 4096), RoundSize(1280, 256, 9000)):
        assert total(more) > total(least)
    assert total(least, float_copies=3) == total(least) + 3 * 4 * 256 * 152064
    assert total(least, graph_rows=0) < total(least)
    assert total(least, split_keys=None) < total(least)
    # of a card with nothing but this model there is most for KV; the whole window costs partial results
    assert total(RoundSize(1280, 1280, 131072)) < 25 << 30


def test_pool_leaves_room_for_the_largest_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (64 << 30, 80 << 30))
    assert pick_pool_bytes("cuda:0", at_most=1 << 50, workspace=8 << 30) == 42 << 30
    # where a round would take nearly all, rounds are split and the pool has some
    assert pick_pool_bytes("cuda:0", at_most=1 << 50, workspace=70 << 30) == 8 << 30
    assert pick_pool_bytes("cuda:0", at_most=1 << 30, workspace=70 << 30) == 1 << 30

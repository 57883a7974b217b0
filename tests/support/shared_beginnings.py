"""Sequences that share beginnings, and what decoders make of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from decoding.core import HeadOutputs, Tokens
from decoding.cpu_features import has_tiles, multiplies_bfloat16
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from tests.support.random_models import SHAPE

NEEDS_TILES = pytest.mark.skipif(not has_tiles(), reason="this CPU has no tiles, or the system gives none")
NEEDS_BFLOAT16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU has no products of bfloat16")


def encode(backend: HFBackend, sequences: Sequence[Tokens], max_batched_tokens: int = 2048) -> list[HeadOutputs]:
    """The outputs after every token of every sequence."""
    kv_bytes = 3000 * backend.kv_bytes_per_token
    with closing(PrefillEngine(backend, kv_bytes=kv_bytes, max_batched_tokens=max_batched_tokens)) as reader:
        # the second time the beginnings are in the cache and are shared
        asyncio.run(reader.encode(sequences, [len(tokens) - 1 for tokens in sequences]))
        return asyncio.run(reader.encode(sequences, [len(tokens) // 2 for tokens in sequences]))


@st.composite
def trees(draw: st.DrawFn) -> list[Tokens]:
    """Sequences of all lengths; each continues a beginning of an earlier one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sequences: list[Tokens] = []
    for _ in range(draw(st.integers(1, 9))):
        parent = sequences[rng.integers(len(sequences))] if sequences else ()
        beginning = parent[: rng.integers(len(parent) + 1)]
        new = rng.integers(0, SHAPE["vocab_size"], rng.integers(1, draw(st.sampled_from((3, 20, 70)))))
        sequences.append((*beginning, *new.tolist())[:250])
    return sequences


def rounding_error(backend: HFBackend, exact: HFBackend, lengths: Sequence[int]) -> float:
    """Root mean square of what log-probabilities differ from those of `exact`."""
    sequences = [tuple(number * 37 % exact.vocab_size for number in range(length)) for length in lengths]
    ours, expected = (
        torch.cat([torch.from_numpy(logits).double().log_softmax(-1) for logits in encode(one, sequences)])
        for one in (backend, exact)
    )
    return float((ours - expected).square().mean().sqrt())

"""Attention over keys and values of bfloat16, for any number of heads."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Tokens
from decoding.model.transformers_checkpoint import HFBackend
from tests.support.random_models import random_model
from tests.support.shared_beginnings import NEEDS_BFLOAT16, encode, rounding_error, trees

pytestmark = NEEDS_BFLOAT16

ALL_HEADS = pytest.mark.parametrize("heads", [(4, 4), (14, 2), (20, 1)])
"""As many keys as queries; a token that does not fill a tile of 16 rows; one that needs two."""


@cache
def headed_backend(heads: tuple[int, int], decoder: str, dtype: Any) -> HFBackend:
    """`heads`: of queries, and of keys and values."""
    model = random_model("qwen3", num_attention_heads=heads[0], num_key_value_heads=heads[1])
    return HFBackend(model, device="cpu", dtype=dtype, decoder=decoder)


@ALL_HEADS
def test_attention_in_bfloat16_rounds_less_than_the_eager_decoder(heads: tuple[int, int]) -> None:
    exact = headed_backend(heads, "eager", "float64")
    ours, theirs = (
        rounding_error(headed_backend(heads, decoder, "bfloat16"), exact, (1, 31, 32, 33, 64, 240))
        for decoder in ("compiled", "eager")
    )
    assert 1e-5 < ours < theirs


@ALL_HEADS
@settings(max_examples=10, deadline=None)
@given(trees(), st.sampled_from((5, 40, 2048)))
def test_attention_in_tiles_has_the_bits_of_each_sequence_alone(
    heads: tuple[int, int], sequences: list[Tokens], max_batched: int
) -> None:
    backend = headed_backend(heads, "compiled", "bfloat16")
    for sequence, outputs in zip(sequences, encode(backend, sequences, max_batched), strict=True):
        np.testing.assert_array_equal(outputs, encode(backend, [sequence])[0])

"""A reducer makes less of the outputs of a head where they are, and gives what it would give of all of them at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing

import numpy as np
import pytest
import torch

from decoding.core import Tokens
from decoding.prefill import OutputReducer, PrefillEngine
from reason.scorers.token_statistics import log_ratio, token_statistics
from tests.support.fakes import HashBackend
from tests.support.pretended_gpu import pretended_gpu
from tests.support.random_models import open_gpu_backend

VOCABULARY = 32


def sequences_of(count: int) -> tuple[list[Tokens], list[int]]:
    """Sequences that share beginnings, and the first token of each whose output is wanted."""
    dice = random.Random(0)
    stem = tuple(dice.randrange(VOCABULARY) for _ in range(9))
    sequences = [
        (*stem[: dice.randint(1, 9)], *(dice.randrange(VOCABULARY) for _ in range(dice.randint(1, 30))))
        for _ in range(count)
    ]
    return sequences, [dice.randint(1, len(tokens) - 1) for tokens in sequences]


@pytest.mark.parametrize("reducer", [log_ratio, token_statistics])
@pytest.mark.parametrize("max_batched_tokens", [7, 2048])
def test_a_reducer_gives_what_it_gives_of_the_whole_output(reducer: OutputReducer, max_batched_tokens: int) -> None:
    sequences, starts = sequences_of(20)
    backend = HashBackend(VOCABULARY, scale=4.0)
    with closing(PrefillEngine(backend, kv_bytes=300, max_batched_tokens=max_batched_tokens)) as whole:
        logits = asyncio.run(whole.encode(sequences, [0] * len(sequences)))
    options = {"kv_bytes": 300, "max_batched_tokens": max_batched_tokens}
    with closing(PrefillEngine(backend, reducer=reducer, reduced_rows=5, **options)) as reduced:
        for _ in range(2):  # the second time from the cache
            outputs = asyncio.run(reduced.encode(sequences, starts))
            for tokens, start, rows, output in zip(sequences, starts, logits, outputs, strict=True):
                before = torch.from_numpy(rows[start - 1 : -1])
                expected = reducer(before, torch.tensor(tokens[start:])).numpy()
                np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6)
        reduced.assert_invariants()


def test_no_logits_are_copied_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences, starts = sequences_of(6)
    outputs = sum(len(tokens) - start for tokens, start in zip(sequences, starts, strict=True))
    with pretended_gpu(monkeypatch) as gpu:
        backend = open_gpu_backend()
        with closing(PrefillEngine(backend, kv_bytes=1 << 20, reducer=token_statistics)) as reader:
            asyncio.run(reader.encode(sequences, starts))
    assert 0 < gpu.largest_copy <= 3 * outputs


@pytest.mark.parametrize("start", [0, 4, -1])
def test_a_start_without_an_output_before_it_is_refused(start: int) -> None:
    reader = PrefillEngine(HashBackend(), kv_bytes=100, reducer=log_ratio)
    with closing(reader), pytest.raises(ValueError, match="start must be within"):
        asyncio.run(reader.encode([(1, 2, 3, 4)], [start]))

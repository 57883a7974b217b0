"""Log-probabilities of the most likely tokens and entropies, as the local engine measures them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from decoding.core import Generation, GenerationRequest
from tests.support.engines import make_request, mixed_requests, open_engine
from tests.support.fakes import HashBackend

PREFIX = (3, 1, 4, 1, 5)


class RecordingBackend(HashBackend):
    """Keeps the logits of every round."""

    def __init__(self, vocab_size: int = 32) -> None:
        super().__init__(vocab_size)
        self.logits: list[Tensor] = []

    def apply_head(self, hidden: Tensor) -> Tensor:
        self.logits.append(super().apply_head(hidden))
        return self.logits[-1]


def generate(requests: list[GenerationRequest], backend: HashBackend | None = None) -> list[Generation]:
    with open_engine(backend or HashBackend()) as engine:
        return asyncio.run(engine.generate(requests))


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_rows_are_those_of_the_unfiltered_distribution_before_each_token(temperature: float) -> None:
    backend = RecordingBackend()
    request = replace(make_request(PREFIX, 7, max_tokens=12, temperature=temperature, top_k=3), num_top=5)
    (generation,) = generate([request], backend)
    log_p = torch.cat(backend.logits).double().log_softmax(-1).numpy()
    assert log_p.shape == (12, 32)
    assert generation.top_logprobs is not None
    assert generation.entropies is not None
    np.testing.assert_allclose(generation.top_logprobs, -np.sort(-log_p, axis=1)[:, :5], atol=1e-5)
    np.testing.assert_allclose(generation.entropies, -(np.exp(log_p) * log_p).sum(axis=1), atol=1e-5)
    chosen = log_p[np.arange(12), list(generation.tokens)]
    np.testing.assert_allclose(generation.logprobs, chosen, atol=1e-5)


def test_each_request_gets_what_it_asked_for_whatever_runs_beside_it() -> None:
    requests = [replace(request, num_top=i % 4) for i, request in enumerate(mixed_requests(24))]
    together = generate(requests)
    for request, generation in zip(requests, together, strict=True):
        (alone,) = generate([request])
        assert generation.tokens == alone.tokens
        if not request.num_top:
            assert generation.top_logprobs is generation.entropies is None
            continue
        assert generation.top_logprobs is not None
        assert generation.top_logprobs.dtype == np.float32
        assert generation.top_logprobs.shape == (len(generation.tokens), request.num_top)
        np.testing.assert_allclose(generation.top_logprobs, np.array(alone.top_logprobs), atol=1e-5)
        np.testing.assert_allclose(np.array(generation.entropies), np.array(alone.entropies), atol=1e-5)


def test_vocabulary_smaller_than_the_number_asked_for_leaves_nan_behind_it() -> None:
    (generation,) = generate([replace(make_request((1, 2), max_tokens=4), num_top=6)], HashBackend(vocab_size=4))
    assert generation.top_logprobs is not None
    assert np.isfinite(generation.top_logprobs[:, :4]).all()
    assert np.isnan(generation.top_logprobs[:, 4:]).all()


def test_deadline_before_the_first_token_gives_no_rows() -> None:
    late = replace(make_request(PREFIX, max_tokens=4), num_top=3, deadline=time.monotonic() - 1)
    (generation,) = generate([late])
    assert generation.finish == "deadline"
    assert generation.top_logprobs is not None
    assert generation.top_logprobs.shape == (0, 3)


def test_preempted_request_keeps_its_rows() -> None:
    requests = [replace(make_request((i, 1, 2), i, max_tokens=120), num_top=2) for i in range(2)]
    with open_engine(HashBackend(), num_slots=150) as engine:
        squeezed = asyncio.run(engine.generate(requests))
        assert engine.stats.preemptions > 0
    for one, other in zip(squeezed, generate(requests), strict=True):
        np.testing.assert_allclose(np.array(one.entropies), np.array(other.entropies), atol=1e-5)


@pytest.mark.parametrize("num_top", [-1, 21, 2.0])
def test_wrong_number_is_refused(num_top: int) -> None:
    with pytest.raises(ValueError, match="num_top must be an int"):
        replace(make_request(PREFIX), num_top=num_top)

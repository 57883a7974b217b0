"""Engines over toy models, and requests for them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict, Unpack

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.kv.eviction.policy import EvictionPolicy
from decoding.model.backend import Backend
from decoding.round import Speculation
from tests.support.fakes import ToyTokenizer

TOKENIZER = ToyTokenizer()


class EngineKnobs(TypedDict, total=False):
    """Settings of `LocalEngine` that tests change."""

    eos_ids: list[int]
    max_running_requests: int
    max_batched_tokens: int
    speculation: Speculation | None
    eviction: EvictionPolicy | None


class SamplingKnobs(TypedDict, total=False):
    """Fields of `SamplingParams` that tests change."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    stop: tuple[str, ...]
    stop_token_ids: Tokens


@contextmanager
def open_engine(backend: Backend, *, num_slots: int = 4000, **knobs: Unpack[EngineKnobs]) -> Iterator[LocalEngine]:
    """Opens an engine whose pool has `num_slots` slots; checks its invariants and closes it afterwards."""
    kv_bytes = (num_slots + 1) * backend.kv_bytes_per_token
    engine = LocalEngine(backend, decode=TOKENIZER.decode, kv_bytes=kv_bytes, **knobs)
    try:
        yield engine
        engine.assert_invariants()
    finally:
        engine.close()


def make_request(prefix: Tokens, seed: int = 0, **params: Unpack[SamplingKnobs]) -> GenerationRequest:
    return GenerationRequest(prefix=prefix, params=SamplingParams(**params), seed=seed)


def mixed_requests(count: int, seed: int = 0) -> list[GenerationRequest]:
    """Returns branches of three problems, with random depths and settings."""
    rng = random.Random(seed)
    problems = [tuple(rng.randrange(32) for _ in range(rng.randint(5, 40))) for _ in range(3)]
    choices: list[SamplingKnobs] = [{"temperature": 0.0}, {}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}]
    requests = []
    for i in range(count):
        prefix = rng.choice(problems)
        prefix += tuple(rng.randrange(2) for _ in range(rng.randint(0, 6)))
        settings = rng.choice(choices)
        settings = {**settings, "max_tokens": rng.randint(1, 25)}
        requests.append(make_request(prefix, i, **settings))
    return requests

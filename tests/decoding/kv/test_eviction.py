"""Eviction of old KV in the engine: what each token sees, also with drafts, after preemption and in other chunks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.kv.eviction.policy import EvictionPolicy
from decoding.kv.eviction.random import RandomEviction
from decoding.kv.eviction.recent import RecentEviction
from decoding.round import Speculation
from reason.config.compose import load_option
from reason.engines import speculation
from tests.support.engines import EngineKnobs, make_request, open_engine
from tests.support.fakes import HashBackend, mix_bits

VOCABULARY = 3  # so that drafts are often right
POLICIES: list[EvictionPolicy] = [
    RecentEviction(keep_tokens=10, every=4),
    RandomEviction(keep_tokens=11, every=3, seed=5),
    RandomEviction(keep_tokens=2, every=1),
    RecentEviction(keep_tokens=8, every=8),
]


def drafts(controller: str = "fixed") -> Speculation:
    groups = {"speculation": "stand", "controller": controller, "acceptance": "coupled"}
    settings: dict[str, Any] = {group: load_option(group, name) for group, name in groups.items()}
    return speculation.validate_speculation(settings).make_speculation(None, "the writer")


def branches(max_tokens: int = 50, temperature: float = 0.7) -> list[GenerationRequest]:
    """Branches of two questions: some begin at the question, others behind steps that a border may have cut."""
    rng, requests = random.Random(max_tokens), []
    questions = [tuple(rng.randrange(VOCABULARY) for _ in range(length)) for length in (3, 14)]
    for seed in range(8):
        question = questions[seed % 2]
        steps = tuple(rng.randrange(2) for _ in range(rng.choice([0, 0, 7, 12, 13, 30])))
        params = SamplingParams(max_tokens=rng.randint(1, max_tokens), temperature=temperature)
        requests.append(
            GenerationRequest(prefix=question + steps, params=params, seed=seed, question_length=len(question))
        )
    return requests


def generate(
    requests: Sequence[GenerationRequest], policy: EvictionPolicy | None, **knobs: Any
) -> tuple[list[Tokens], LocalEngine]:
    """Returns the generated tokens, and the closed engine."""
    with open_engine(HashBackend(VOCABULARY), eviction=policy, **knobs) as engine:
        done = asyncio.run(engine.generate(requests))
    return [generation.tokens for generation in done], engine


class Oracle(HashBackend):
    """Decodes greedily from what each token sees by the definition of a policy, position by position."""

    def visible(self, policy: EvictionPolicy, question: int, text: Tokens) -> list[int]:
        """Positions that the last token of `text` sees: those kept at the last border, and all since."""
        positions: list[int] = []
        for border in range(len(text) - question):  # borders before the last token
            if border > policy.keep_tokens and border % policy.every == 0:
                last = [at for at in positions if at >= border - policy.every]
                older = [at for at in positions if at < border - policy.every]
                written = np.array(text[question : question + border])
                scores = policy.score_tokens(np.array(older, dtype=np.int64), written)
                ranked = sorted(zip(scores.tolist(), older, strict=True), reverse=True)
                positions = [at for _, at in ranked[: policy.keep_tokens - len(last)]] + last
            positions.append(border)
        return [*range(question), *(question + at for at in positions)]

    def continue_text(self, policy: EvictionPolicy, request: GenerationRequest) -> Tokens:
        text = request.prefix
        for _ in range(request.params.max_tokens):
            positions = np.array(self.visible(policy, request.question_length or len(request.prefix), text))
            ids = np.array(text, dtype=np.uint64)[positions]
            hashes = mix_bits(ids * np.uint64(65537) + mix_bits(positions.astype(np.uint64) + np.uint64(1)))
            hidden = torch.from_numpy(hashes.sum(dtype=np.uint64, keepdims=True).view(np.int64))
            text += (int(self.apply_head(hidden).argmax()),)
        return text[len(request.prefix) :]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("has_drafts", [False, True])
def test_each_token_sees_what_the_policy_keeps(policy: EvictionPolicy, has_drafts: bool) -> None:
    requests = branches(temperature=0.0)
    oracle = Oracle(VOCABULARY)
    expected = [oracle.continue_text(policy, request) for request in requests]
    assert expected != generate(requests, None)[0]  # so the policies do evict what these texts depend on
    parts = drafts() if has_drafts else None
    texts, engine = generate(requests, policy, speculation=parts)
    assert texts == expected
    assert engine.stats.evicted_by_branches > 0
    assert (engine.stats.accepted > 0) == has_drafts


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    "knobs",
    [
        {"max_batched_tokens": 7},  # prompts are filled in pieces
        {"max_running_requests": 1},
        {"num_slots": 120},  # branches wait, and are preempted
        {"speculation": "throughput"},
        {"speculation": "fixed", "num_slots": 120, "max_batched_tokens": 9},
    ],
    ids=str,
)
def test_text_does_not_depend_on_rounds(policy: EvictionPolicy, knobs: dict[str, Any]) -> None:
    requests = branches()
    if "speculation" in knobs:
        knobs = knobs | {"speculation": drafts(knobs["speculation"])}
    assert generate(requests, policy, **knobs)[0] == generate(requests, policy)[0]


def test_preempted_branches_evict_the_same_again() -> None:
    policy = RandomEviction(keep_tokens=40, every=8)
    requests = [make_request((1, 2, 0), seed, max_tokens=70) for seed in range(5)]
    texts, narrow = generate(requests, policy, num_slots=130)
    assert narrow.stats.preemptions > 0
    expected, wide = generate(requests, policy)
    assert wide.stats.preemptions == 0
    assert texts == expected


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_continuation_inherits_what_its_branch_has_evicted(policy: EvictionPolicy) -> None:
    question = (1, 2, 0, 2)
    with open_engine(HashBackend(VOCABULARY), eviction=policy) as engine:
        (whole,) = asyncio.run(engine.generate([make_request(question, 3, max_tokens=60)]))
        for length in (1, 9, 12, 13, 29):
            params = SamplingParams(max_tokens=60 - length)
            child = GenerationRequest(
                prefix=question + whole.tokens[:length], params=params, seed=3, question_length=len(question)
            )
            (rest,) = asyncio.run(engine.generate([child]))
            assert rest.tokens == whole.tokens[length:]


@pytest.mark.parametrize("policy", [RecentEviction(100, 4), RandomEviction(100, 1)], ids=str)
def test_nothing_is_evicted_of_texts_within_the_budget(policy: EvictionPolicy) -> None:
    requests = branches()
    texts, engine = generate(requests, policy)
    assert texts == generate(requests, None)[0]
    assert engine.stats.evicted_by_branches == 0


def test_kv_of_a_long_text_is_bounded() -> None:
    question, policy = (1, 2, 0), RecentEviction(keep_tokens=20, every=5)
    knobs: EngineKnobs = {"eviction": policy}
    with open_engine(HashBackend(VOCABULARY), **knobs) as engine:
        asyncio.run(engine.generate([make_request(question, seed, max_tokens=300) for seed in range(3)]))
        stats = engine.stats
    assert stats.peak_resident_tokens <= len(question) + 3 * (20 + 5)
    assert stats.peak_unshared_tokens <= 3 * (len(question) + 20 + 5)


def test_a_whole_prefix_is_shared_and_one_with_holes_is_not() -> None:
    question, steps = (1, 2, 0), tuple(random.Random(1).randrange(2) for _ in range(40))
    policy = RecentEviction(keep_tokens=16, every=4)
    params = SamplingParams(max_tokens=4)
    requests = [
        GenerationRequest(prefix=question + steps, params=params, seed=seed, question_length=3) for seed in range(3)
    ]
    with open_engine(HashBackend(VOCABULARY), eviction=policy) as engine:
        first, *others = asyncio.run(engine.generate(requests))
    assert first.usage.cached_tokens == 0
    # before the first border, at 20 tokens after the question, all KV is there; one token less is read from the cache
    assert [other.usage.cached_tokens for other in others] == [3 + 20 - 1] * 2


def test_random_eviction_is_uniform_and_follows_seed_and_text() -> None:
    tokens = np.array([random.Random(0).randrange(50) for _ in range(400)])
    positions = np.arange(400)
    masks = [RandomEviction(100, 10, seed).choose_kept(positions, tokens) for seed in range(200)]
    rates = np.mean(masks, axis=0)[:-10]
    assert abs(rates.mean() - 90 / 390) < 1e-12
    assert abs(np.corrcoef(rates, positions[:-10])[0, 1]) < 0.2  # no older token is kept less than a newer one
    assert len({is_kept.tobytes() for is_kept in masks}) == 200
    other = tokens.copy()
    other[200] += 1
    was, now = (RandomEviction().score_tokens(positions, text) for text in (tokens, other))
    assert (was[:200] == now[:200]).all()
    assert (was[200:] != now[200:]).all()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"every": 0}, "every must be an int >= 1, got 0"),
        ({"keep_tokens": 63}, "keep_tokens must be an int >= 64, got 63"),
        ({"keep_tokens": 0.5}, "keep_tokens must be an int >= 64, got 0.5"),
    ],
)
def test_wrong_budgets_are_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecentEviction(**knobs)

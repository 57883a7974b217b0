"""Eviction in the decoders, against transformers with the mask that a policy defines."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.kv.eviction.history import AttentionHistory
from decoding.kv.eviction.lazy import LazyEviction
from decoding.kv.eviction.policy import EvictionPolicy
from decoding.kv.eviction.random import RandomEviction
from decoding.kv.eviction.recent import RecentEviction
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from tests.support.engines import EngineKnobs, open_engine
from tests.support.random_models import random_model
from tests.support.streams import FutureDrafter

QUESTION: Tokens = tuple(range(5, 12))
LAZY = LazyEviction(9, 3, threshold=0.02)
POLICIES: list[tuple[str, EvictionPolicy]] = [
    (decoder, policy)
    for decoder in ("compiled", "eager")
    for policy in (RecentEviction(12, 4), RandomEviction(9, 3, seed=2), LAZY)
    if decoder == "eager" or not policy.needs_attention
]


def measure_attention(model: Any, text: Tokens, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Returns `[T, T]`, the mean over layers and heads."""
    bias = torch.zeros(mask.shape).masked_fill(~torch.from_numpy(mask), -1e30)
    with torch.no_grad():
        layers = model(torch.tensor([text]), attention_mask=bias[None, None], output_attentions=True).attentions
    return torch.stack(layers).mean(dim=(0, 1, 2)).numpy()


def find_history(policy: EvictionPolicy, attention: NDArray[np.float32], visible: list[int]) -> AttentionHistory:
    """Returns the history of the `visible` tokens, each by itself, from the attention of all tokens so far."""
    begin, last_steps, intervals = len(QUESTION), [], []
    for token in visible:
        steps = [token, *np.flatnonzero(attention[begin:, begin + token] > policy.threshold).tolist()]
        last_steps.append(max(steps))
        intervals.append(max(np.diff(sorted(steps)).tolist(), default=0))
    return AttentionHistory(np.array(last_steps), np.array(intervals))


def visible_mask(policy: EvictionPolicy, text: Tokens, model: Any) -> torch.Tensor:
    """Returns bool `[T, T]`: what each token of `text` sees, row by row."""
    begin, visible = len(QUESTION), list[int]()
    mask = np.zeros((len(text), len(text)), dtype=np.bool_)
    for position in range(len(text)):
        at = position - begin
        if at > policy.keep_tokens and at % policy.every == 0:
            positions, history = np.array(visible), None
            if policy.needs_attention:
                attention = measure_attention(model, text[:position], mask[:position, :position])
                history = find_history(policy, attention, visible)
            visible = positions[policy.choose_kept(positions, np.array(text[begin:position]), history)].tolist()
        if at >= 0:
            visible.append(at)
        mask[position, [*range(min(begin, position + 1)), *(begin + one for one in visible)]] = True
    return torch.from_numpy(mask)


@pytest.mark.parametrize(("decoder", "policy"), POLICIES, ids=str)
def test_tokens_equal_masked_attention(decoder: str, policy: EvictionPolicy) -> None:
    model = random_model("qwen3", attn_implementation="eager")
    backend = HFBackend(model, device="cpu", dtype="float32", decoder=decoder)
    steps = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4)
    requests = [
        GenerationRequest(
            prefix=QUESTION + steps[:length],
            params=SamplingParams(max_tokens=40, temperature=0.0),
            seed=0,
            question_length=len(QUESTION),
        )
        for length in (0, 5, 16, 20)
    ]
    with open_engine(backend, eviction=policy) as engine:
        done = asyncio.run(engine.generate(requests))
        assert engine.stats.evicted_by_branches > 0
    for request, ours in zip(requests, done, strict=True):
        text = request.prefix + ours.tokens
        bias = torch.zeros(len(text), len(text)).masked_fill(~visible_mask(policy, text, model), -1e30)
        with torch.no_grad():
            logits = model(torch.tensor([text]), attention_mask=bias[None, None]).logits[
                0, len(request.prefix) - 1 : -1
            ]
        assert ours.tokens == tuple(logits.argmax(-1).tolist())
        exact = logits.log_softmax(-1).gather(1, torch.tensor(ours.tokens)[:, None])[:, 0]
        np.testing.assert_allclose(ours.logprobs, exact, atol=5e-4)


def test_lazy_eviction_is_the_same_with_drafts_and_other_chunks() -> None:
    backend = HFBackend(random_model("qwen2"), device="cpu", dtype="float64", decoder="eager")
    params = SamplingParams(max_tokens=40)
    texts = [QUESTION, QUESTION + tuple(range(20)), QUESTION + tuple(range(3))]
    requests = [
        GenerationRequest(prefix=text, params=params, seed=seed, question_length=len(QUESTION))
        for seed, text in enumerate(texts)
    ]
    with open_engine(backend, eviction=LAZY) as engine:
        plain = asyncio.run(engine.generate(requests))
    with open_engine(backend) as engine:
        assert [g.tokens for g in asyncio.run(engine.generate(requests))] != [g.tokens for g in plain]
    futures = {r.seed: r.prefix + g.tokens for r, g in zip(requests, plain, strict=True)}
    speculation = Speculation(FutureDrafter(futures, 0.3), FixedController(6))
    knobs: list[EngineKnobs] = [
        {"speculation": speculation},
        {"max_batched_tokens": 7},
        {"max_running_requests": 1},
    ]
    for each in knobs:
        each["eviction"] = LAZY
        with open_engine(backend, **each) as engine:
            assert [g.tokens for g in asyncio.run(engine.generate(requests))] == [g.tokens for g in plain]
        assert (engine.stats.accepted > 0) == ("speculation" in each)
    with open_engine(backend, eviction=LAZY, num_slots=70) as engine:
        assert [g.tokens for g in asyncio.run(engine.generate(requests))] == [g.tokens for g in plain]


def test_the_compiled_decoder_refuses_policies_that_need_attention() -> None:
    backend = HFBackend(random_model("qwen2"), device="cpu", dtype="float32", decoder="compiled")
    with pytest.raises(ValueError, match="reads attention weights"), open_engine(backend, eviction=LAZY):
        pass


def test_a_token_that_recurs_is_kept_until_its_interval_has_passed() -> None:
    positions, tokens = np.arange(12), np.zeros(12, dtype=np.int64)
    history = AttentionHistory(positions.copy(), np.zeros(12, dtype=np.int64))
    history.last_steps[[1, 4]], history.intervals[[1, 4]] = 8, (7, 2)
    policy = LazyEviction(4, 2)
    assert np.flatnonzero(policy.choose_kept(positions, tokens, history)).tolist() == [1, 4, 10, 11]
    # both were seen four steps ago, which is within the longer interval only
    assert policy.score_tokens(positions, tokens, history)[[1, 4]].argmax() == 0
    assert (policy.score_tokens(positions, tokens, history) > 0).sum() == 2

"""The transformers backend: a packed batch, each sequence alone and transformers' modules agree in float32."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any, Unpack

import numpy as np
import pytest
import torch
import transformers

from decoding import threads
from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.model.fused_decoder import FusedDecoder
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from tests.support.engines import TOKENIZER, EngineKnobs, open_engine
from tests.support.random_models import FAMILIES, SHAPE, random_model
from tests.support.shared_beginnings import NEEDS_BFLOAT16
from tests.support.streams import FutureDrafter


def prefixes() -> list[Tokens]:
    """Short and long prefixes, alone and with a common beginning."""
    generator = torch.Generator().manual_seed(1)
    drawn = [tuple(torch.randint(0, 97, (n,), generator=generator).tolist()) for n in (5, 70, 40, 1)]
    return [*drawn, (*drawn[2], 1, 2, 3), (*drawn[2], 1, 2, 5, 6), *[drawn[1]] * 3]


def generate(
    model: Any,
    requests: list[GenerationRequest],
    num_slots: int = 2000,
    decoder: str = "eager",
    **knobs: Unpack[EngineKnobs],
) -> list[Generation]:
    backend = HFBackend(model, device="cpu", dtype="float32", decoder=decoder)
    with open_engine(backend, num_slots=num_slots, **knobs) as engine:
        return asyncio.run(engine.generate(requests))


@pytest.mark.parametrize("decoder", ["compiled", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_generate(family: str, decoder: str) -> None:
    model = random_model(family)
    requests = [
        GenerationRequest(prefix=p, params=SamplingParams(max_tokens=12, temperature=0.0), seed=0) for p in prefixes()
    ]
    packed = generate(model, requests, decoder=decoder)
    for request, ours in zip(requests, packed, strict=True):
        ids = torch.tensor([request.prefix])
        theirs = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )[0, ids.shape[1] :]  # fmt: skip
        assert ours.tokens == tuple(theirs.tolist())
        whole = torch.tensor([request.prefix + ours.tokens])
        with torch.no_grad():
            log_p = model(whole).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
        np.testing.assert_allclose(ours.logprobs, log_p.gather(1, theirs[:, None])[:, 0], atol=2e-4)


@pytest.mark.parametrize("knobs", [{"max_batched_tokens": 7}, {"max_running_requests": 1}, {"num_slots": 110}], ids=str)
def test_sampled_tokens_do_not_depend_on_the_batch(knobs: dict[str, Any]) -> None:
    model = random_model("qwen2")
    requests = [
        GenerationRequest(prefix=p, params=SamplingParams(max_tokens=15, top_p=0.95), seed=s)
        for s, p in enumerate(prefixes())
    ]
    together, other = generate(model, requests), generate(model, requests, **knobs)
    assert [g.tokens for g in together] == [g.tokens for g in other]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafted_tokens_equal_plain_decoding(temperature: float) -> None:
    model = random_model("qwen3")
    params = SamplingParams(max_tokens=20, temperature=temperature)
    requests = [GenerationRequest(prefix=p, params=params, seed=s) for s, p in enumerate(prefixes())]
    plain = generate(model, requests)
    futures = {r.seed: r.prefix + g.tokens for r, g in zip(requests, plain, strict=True)}
    drafted = generate(model, requests, speculation=Speculation(FutureDrafter(futures, 0.3), FixedController(10)))
    assert [g.tokens for g in drafted] == [g.tokens for g in plain]
    assert sum(g.usage.accepted for g in drafted) > 20


@pytest.mark.parametrize(
    ("decoder", "head"),
    [
        ("eager", 8),
        # heads are filled up to 32 numbers
        pytest.param("compiled", 32, marks=NEEDS_BFLOAT16),
    ],
)
def test_bfloat16_tokens_are_close_to_float32(decoder: str, head: int) -> None:
    model = random_model("llama")
    backend = HFBackend(random_model("llama"), device="cpu", dtype="bfloat16", decoder=decoder)
    assert backend.kv_bytes_per_token == 2 * 3 * 2 * head * 2
    engine = LocalEngine(backend, decode=TOKENIZER.decode, kv_bytes=1 << 20)
    prefix = prefixes()[1]
    (done,) = asyncio.run(
        engine.generate([GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=5), seed=3)])
    )
    engine.close()
    with torch.no_grad():
        log_p = model(torch.tensor([prefix + done.tokens])).logits[0, len(prefix) - 1 : -1].log_softmax(-1)
    exact = log_p.gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
    np.testing.assert_allclose(done.logprobs, exact, atol=0.35)


def test_frequencies_of_positions_keep_their_precision_in_bfloat16() -> None:
    exact = HFBackend(random_model("llama"), device="cpu", dtype="float32", decoder="eager").decoder
    rounded = HFBackend(random_model("llama"), device="cpu", dtype="bfloat16", decoder="eager").decoder
    assert isinstance(exact, FusedDecoder)
    assert isinstance(rounded, FusedDecoder)
    tables = exact.rotary.extend_to(5000), rounded.rotary.extend_to(5000)
    assert torch.equal(tables[0].to(torch.bfloat16), tables[1])


def test_unsupported_models_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"qwen2, qwen3, llama.*gpt2"):
        HFBackend(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1)), device="cpu")
    sliding = transformers.Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(ValueError, match="sliding"):
        HFBackend(transformers.Qwen2ForCausalLM(sliding), device="cpu")
    with pytest.raises(ValueError, match="dtype must be one of"):
        HFBackend(random_model("qwen2"), device="cpu", dtype="float8")


@pytest.mark.parametrize("decoder", ["compiled", "eager"])
@pytest.mark.parametrize("max_batched_tokens", [2048, 9])
def test_prefill_equals_the_classifier_and_runs_each_prefix_once(max_batched_tokens: int, decoder: str) -> None:
    model = random_model("qwen2", transformers.AutoModelForTokenClassification, num_labels=3)
    backend = HFBackend(model, device="cpu", dtype="float32", decoder=decoder)
    reader = PrefillEngine(backend, kv_bytes=backend.kv_bytes_per_token * 400, max_batched_tokens=max_batched_tokens)
    prefix = prefixes()[1]
    sequences = [(*prefix, *range(n, 2 * n)) for n in (3, 9, 30, 1)]

    async def encode_separately() -> list[np.ndarray]:
        calls = (reader.encode([s], [len(prefix)]) for s in sequences)
        return [outputs for (outputs,) in await asyncio.gather(*calls)]

    for _ in range(2):
        for sequence, outputs in zip(sequences, asyncio.run(encode_separately()), strict=True):
            with torch.no_grad():
                expected = model(torch.tensor([sequence])).logits[0, len(prefix) :]
            np.testing.assert_allclose(outputs, expected, atol=2e-4)
    assert reader.processed_tokens == len(prefix) + 2 * (3 + 9 + 30 + 1)
    reader.assert_invariants()
    reader.close()


def test_prefill_engine_is_exact_in_a_small_pool_and_refuses_wrong_inputs() -> None:
    model = random_model("llama", transformers.AutoModel)
    backend = HFBackend(model, head=lambda hidden: hidden[:, :2] * 2, device="cpu", dtype="float32", decoder="eager")
    reader = PrefillEngine(backend, kv_bytes=backend.kv_bytes_per_token * 90, max_batched_tokens=16)
    sequences = [p for p in prefixes() if len(p) > 3]
    starts = [len(p) // 2 for p in sequences]
    for sequence, start, outputs in zip(sequences, starts, asyncio.run(reader.encode(sequences, starts)), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([sequence])).last_hidden_state[0, start:, :2] * 2
        np.testing.assert_allclose(outputs, expected, atol=2e-4)
    with pytest.raises(ValueError, match="start"):
        asyncio.run(reader.encode([(1, 2)], [2]))
    with pytest.raises(OversizedRequest, match=r"100 tokens exceeds .* pool of 89 tokens: raise scorer.kv_mib"):
        asyncio.run(reader.encode([(1,) * 100], [0]))
    reader.assert_invariants()
    reader.close()


@pytest.mark.parametrize("min_products", [0, 10**12])
def test_forward_pass_uses_helper_threads_from_a_minimum_size_on(
    min_products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MIN_PARALLEL_PRODUCTS", min_products)
    backend, thread_counts = HFBackend(random_model("qwen2"), device="cpu", decoder="eager"), set()
    decoder: Any = backend.decoder
    forward = decoder.forward

    def count_threads(*args: Any) -> Any:
        thread_counts.add(torch.get_num_threads())
        return forward(*args)

    monkeypatch.setattr(decoder, "forward", count_threads)
    with closing(LocalEngine(backend, decode=str)) as engine:
        params = SamplingParams(max_tokens=3)
        asyncio.run(engine.generate([GenerationRequest(prefix=(1, 2), params=params, seed=0)]))
    assert thread_counts == {1 if min_products else torch.get_num_threads()}

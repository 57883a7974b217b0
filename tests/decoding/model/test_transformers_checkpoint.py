"""The transformers backend: packed batch = each row alone = transformers' own modules, in float32, and its reader."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from decoding import threads
from decoding.core import GenerationRequest, OversizedRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefixReader
from tests.decoding.speculation.test_drafts import Oracle
from tests.support.fakes import ByteTokenizer

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FAMILIES = {
    "qwen2": lambda **kw: transformers.Qwen2Config(**SHAPE, **kw),
    "qwen3": lambda **kw: transformers.Qwen3Config(**SHAPE, head_dim=12, **kw),
    "llama": lambda **kw: transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, **kw),
    "llama3_rope": lambda **kw: transformers.LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        **kw,
    ),
}


def random_model(family: str, auto: Any = transformers.AutoModelForCausalLM, **config: Any) -> Any:
    """A model whose every weight matters: norms and biases are random too, and logits are far from uniform."""
    torch.manual_seed(0)
    model = auto.from_config(FAMILIES[family](**config)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.5 if parameter.ndim == 1 else 0.0, std=0.25)
    return model


def prefixes() -> list[Tokens]:
    """Short and long, alone and related."""
    generator = torch.Generator().manual_seed(1)
    made = [tuple(torch.randint(0, 97, (n,), generator=generator).tolist()) for n in (5, 70, 40, 1)]
    return [*made, (*made[2], 1, 2, 3), (*made[2], 1, 2, 5, 6), *[made[1]] * 3]


def generate(model: Any, requests: list[GenerationRequest], pages: int = 2000, **knobs: Any) -> list[Any]:
    backend = HFBackend(model, device="cpu", dtype="float32")
    engine = LocalEngine(backend, decode=ByteTokenizer().decode, kv_bytes=backend.page_bytes * (pages + 1), **knobs)
    try:
        return asyncio.run(engine.generate(requests))
    finally:
        engine.check()
        engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers_generate(family: str) -> None:
    model = random_model(family)
    requests = [
        GenerationRequest(prefix=p, params=SamplingParams(max_tokens=12, temperature=0.0), seed=0) for p in prefixes()
    ]
    packed = generate(model, requests)
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


@pytest.mark.parametrize("knobs", [{"max_rows": 7}, {"max_running": 1}, {"pages": 110}], ids=str)
def test_sampled_tokens_do_not_depend_on_the_batch(knobs: dict[str, Any]) -> None:
    model = random_model("qwen2")
    requests = [
        GenerationRequest(prefix=p, params=SamplingParams(max_tokens=15, top_p=0.95), seed=s)
        for s, p in enumerate(prefixes())
    ]
    together, other = generate(model, requests), generate(model, requests, **knobs)
    assert [g.tokens for g in together] == [g.tokens for g in other]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafted_equals_plain(temperature: float) -> None:
    model = random_model("qwen3")
    params = SamplingParams(max_tokens=20, temperature=temperature)
    requests = [GenerationRequest(prefix=p, params=params, seed=s) for s, p in enumerate(prefixes())]
    plain = generate(model, requests)
    futures = {r.seed: r.prefix + g.tokens for r, g in zip(requests, plain, strict=True)}
    from decoding.round import Speculation
    from decoding.speculation.controllers.fixed import Fixed

    drafted = generate(model, requests, speculation=Speculation(Oracle(futures, 0.3), Fixed(10)))
    assert [g.tokens for g in drafted] == [g.tokens for g in plain]
    assert sum(g.spent.accepted for g in drafted) > 20


def test_bfloat16_is_close_to_float32() -> None:
    model = random_model("llama")
    backend = HFBackend(random_model("llama"), device="cpu", dtype="bfloat16")
    assert backend.page_bytes == 2 * 3 * 2 * 8 * 2
    engine = LocalEngine(backend, decode=ByteTokenizer().decode, kv_bytes=1 << 20)
    prefix = prefixes()[1]
    (done,) = asyncio.run(
        engine.generate([GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=5), seed=3)])
    )
    engine.close()
    with torch.no_grad():
        log_p = model(torch.tensor([prefix + done.tokens])).logits[0, len(prefix) - 1 : -1].log_softmax(-1)
    exact = log_p.gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
    np.testing.assert_allclose(done.logprobs, exact, atol=0.35)


def test_other_models_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"qwen2, qwen3, llama.*gpt2"):
        HFBackend(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1)), device="cpu")
    sliding = transformers.Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(ValueError, match="sliding"):
        HFBackend(transformers.Qwen2ForCausalLM(sliding), device="cpu")
    with pytest.raises(ValueError, match="dtype must be one of"):
        HFBackend(random_model("qwen2"), device="cpu", dtype="float8")


@pytest.mark.parametrize("max_rows", [2048, 9])
def test_reader_equals_the_classifier_and_runs_each_prefix_once(max_rows: int) -> None:
    model = random_model("qwen2", transformers.AutoModelForTokenClassification, num_labels=3)
    backend = HFBackend(model, device="cpu", dtype="float32")
    reader = PrefixReader(backend, kv_bytes=backend.page_bytes * 400, max_rows=max_rows)
    prefix = prefixes()[1]
    sequences = [(*prefix, *range(n, 2 * n)) for n in (3, 9, 30, 1)]

    async def read() -> list[np.ndarray]:
        calls = (reader.read([s], [len(prefix)]) for s in sequences)
        return [outputs for (outputs,) in await asyncio.gather(*calls)]

    for _ in range(2):
        for sequence, outputs in zip(sequences, asyncio.run(read()), strict=True):
            with torch.no_grad():
                expected = model(torch.tensor([sequence])).logits[0, len(prefix) :]
            np.testing.assert_allclose(outputs, expected, atol=2e-4)
    assert reader.tokens_run == len(prefix) + 2 * (3 + 9 + 30 + 1)
    reader.check()
    reader.close()


def test_reader_under_a_small_pool_and_its_refusals() -> None:
    model = random_model("llama", transformers.AutoModel)
    backend = HFBackend(model, head=lambda hidden: hidden[:, :2] * 2, device="cpu", dtype="float32")
    reader = PrefixReader(backend, kv_bytes=backend.page_bytes * 90, max_rows=16)
    sequences = [p for p in prefixes() if len(p) > 3]
    starts = [len(p) // 2 for p in sequences]
    for sequence, start, outputs in zip(sequences, starts, asyncio.run(reader.read(sequences, starts)), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([sequence])).last_hidden_state[0, start:, :2] * 2
        np.testing.assert_allclose(outputs, expected, atol=2e-4)
    with pytest.raises(ValueError, match="start"):
        asyncio.run(reader.read([(1, 2)], [2]))
    with pytest.raises(OversizedRequest, match="100 tokens exceeds the reader's 89"):
        asyncio.run(reader.read([(1,) * 100], [0]))
    reader.check()
    reader.close()


@pytest.mark.parametrize("worth_help", [0, 10**12])
def test_a_forward_pass_takes_the_threads_its_length_is_worth(worth_help: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORTH_HELP", worth_help)
    backend, seen = HFBackend(random_model("qwen2"), device="cpu"), set()
    forward = backend._decoder.forward

    def watched(*args: Any) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return forward(*args)

    monkeypatch.setattr(backend._decoder, "forward", watched)
    with closing(LocalEngine(backend, decode=str)) as engine:
        params = SamplingParams(max_tokens=3)
        asyncio.run(engine.generate([GenerationRequest(prefix=(1, 2), params=params, seed=0)]))
    assert seen == {1 if worth_help else torch.get_num_threads()}

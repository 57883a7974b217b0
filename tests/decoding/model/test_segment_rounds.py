"""Engine, reward-model reader and draft model give over segments what they give over blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from decoding.core import Generation, GenerationRequest, HeadOutputs, SamplingParams, Tokens
from decoding.kv.eviction.random import RandomEviction
from decoding.model import segment_attention
from decoding.model.attention_choice import picks_segments
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from reason.engines.local import LocalSettings
from tests.support.engines import open_engine
from tests.support.kernels import KERNEL_DEVICE
from tests.support.random_models import SHAPE, random_model
from tests.support.streams import FutureDrafter

PROMPT = tuple(number * 37 % 97 for number in range(20))
PREFIXES = [PROMPT, PROMPT, (*PROMPT, 5, 6, 7), (*PROMPT, 5, 6, 8, 9), PROMPT[:3]]


@cache
def backend(attention: str) -> HFBackend:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SHAPE, "num_hidden_layers": 1, "num_key_value_heads": 1})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.5 if parameter.ndim == 1 else 0.0, std=0.25)
    return HFBackend(model, device=KERNEL_DEVICE, dtype="float32", decoder="eager", attention=attention)


def requests_of(prefixes: Sequence[Tokens], max_tokens: int, temperature: float) -> list[GenerationRequest]:
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    return [GenerationRequest(prefix=prefix, params=params, seed=seed) for seed, prefix in enumerate(prefixes)]


def generate(
    attention: str, requests: list[GenerationRequest], num_slots: int = 400, speculation: Speculation | None = None
) -> tuple[list[Generation], int]:
    """The generations of one engine, and how often a branch was preempted."""
    with open_engine(backend(attention), num_slots=num_slots, max_batched_tokens=15, speculation=speculation) as engine:
        return asyncio.run(engine.generate(requests)), engine.stats.preemptions


# prompts are filled in pieces of at most 15; two branches do not fit together when they have grown
@pytest.mark.parametrize(
    ("requests", "num_slots", "are_preempted"),
    [
        (requests_of(PREFIXES, 8, 0.0), 400, False),
        (requests_of(PREFIXES, 8, 1.0), 400, False),
        (requests_of(PREFIXES[2:4], 45, 1.0), 97, True),
    ],
    ids=["greedy", "sampled", "preempted"],
)
def test_tokens_equal_those_of_blocks_with_drafts(
    requests: list[GenerationRequest], num_slots: int, are_preempted: bool
) -> None:
    # in these fixed requests no two tokens have scores as close as the rounding errors
    expected, _ = generate("blocks", requests)
    futures = {request.seed: request.prefix + g.tokens for request, g in zip(requests, expected, strict=True)}
    speculation = Speculation(FutureDrafter(futures, 0.3), FixedController(4))
    got, preemptions = generate("segments", requests, num_slots, speculation=speculation)
    assert [g.tokens for g in got] == [g.tokens for g in expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert sum(g.usage.accepted for g in got) > 0
    assert (preemptions > 0) == are_preempted


def read(attention: str, sequences: Sequence[Tokens]) -> list[HeadOutputs]:
    reader = backend(attention)
    with closing(PrefillEngine(reader, kv_bytes=400 * reader.kv_bytes_per_token, max_batched_tokens=15)) as engine:
        # the second time the beginnings are in the cache and are shared
        asyncio.run(engine.encode(sequences, [len(tokens) - 1 for tokens in sequences]))
        return asyncio.run(engine.encode(sequences, [len(tokens) // 2 for tokens in sequences]))


def test_a_reader_has_the_outputs_of_blocks() -> None:
    for got, expected in zip(read("segments", PREFIXES), read("blocks", PREFIXES), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-4)


def test_a_draft_model_has_the_drafts_of_blocks() -> None:
    accepted = {}
    for attention in ("blocks", "segments"):
        source = DraftModel(backend(attention), k=4, kv_bytes=400 * backend(attention).kv_bytes_per_token)
        speculation = Speculation(TreeDrafter(source), FixedController(5))
        done, _ = generate("blocks", requests_of(PREFIXES[1:4], 5, 0.0), speculation=speculation)
        accepted[attention] = [(g.tokens, g.usage.drafted, g.usage.accepted) for g in done]
    assert accepted["segments"] == accepted["blocks"]
    assert sum(count for _, _, count in accepted["blocks"]) > 0


def test_auto_is_segments_on_cuda_where_they_can_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    assert [picks_segments("auto", cuda, dtype) for dtype in dtypes] == [True, True, True, False]
    assert not picks_segments("auto", cpu, torch.float32)
    assert not picks_segments("blocks", cuda, torch.bfloat16)
    caplog.clear()
    monkeypatch.setattr(segment_attention, "has_triton", lambda: False)
    assert not picks_segments("auto", cuda, torch.bfloat16)
    assert "Triton is not installed" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "flash"}, "attention must be one of auto, blocks, segments; got 'flash'"),
        ({"attention": "segments", "dtype": "float64"}, "attention=segments cannot run: .*float64; set attention="),
        ({"attention": "segments", "decoder": "compiled"}, "decoder=compiled has attention of its own; set attention="),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HFBackend(random_model("llama"), device=KERNEL_DEVICE, **{"dtype": "float32", **settings})


def test_segments_without_triton_or_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(segment_attention, "has_triton", lambda: False)
        with pytest.raises(ValueError, match=r"attention=segments cannot run: Triton is not installed.*\[gpu\]"):
            HFBackend(random_model("llama"), device="cpu", dtype="float32", attention="segments")
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(ValueError, match="attention=segments cannot run: its kernels need a CUDA device"):
        HFBackend(random_model("llama"), device="cpu", dtype="float32", attention="segments")


def test_the_setting_is_validated_before_a_model_is_loaded() -> None:
    with pytest.raises(ValueError, match="attention must be one of auto, blocks, segments; got 'paged'"):
        LocalSettings(attention="paged")


def test_evicted_tokens_are_in_no_segment() -> None:
    texts = {}
    for attention in ("blocks", "segments"):
        # three share a prefix of which each evicts, while the others still read it
        with open_engine(backend(attention), num_slots=400, eviction=RandomEviction(6, 2)) as engine:
            params = SamplingParams(max_tokens=6, temperature=0.0)
            requests = [
                GenerationRequest(prefix=(*PROMPT, last), params=params, seed=0, question_length=15)
                for last in range(3)
            ]
            texts[attention] = [g.tokens for g in asyncio.run(engine.generate(requests))]
            assert engine.stats.evicted_by_branches > 0
    assert texts["segments"] == texts["blocks"]

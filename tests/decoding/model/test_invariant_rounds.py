"""With numerics=invariant a sequence has the same bits alone, in any batch, chunks, cached prefix, and with drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np
import pytest
import torch
from torch import nn

from decoding import cpu_features
from decoding.core import Generation, GenerationRequest, HeadOutputs, SamplingParams, Tokens
from decoding.kv.eviction.random import RandomEviction
from decoding.model.device_choice import DType
from decoding.model.round_graphs import RoundGraphs
from decoding.model.segments import SegmentTiles
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.triton_interpreter import ordered_products
from reason.engines.local import LocalSettings
from tests.support.engines import EngineKnobs, open_engine
from tests.support.kernels import IS_INTERPRETED, KERNEL_DEVICE
from tests.support.pretended_graphs import PretendedRecorder
from tests.support.random_models import random_model
from tests.support.streams import FutureDrafter

SPLIT = 8
PROMPT = tuple(number * 37 % 97 for number in range(21))
OTHERS = [(*PROMPT[:10], 3, 4), (*PROMPT[:19], 5), PROMPT[:7], (*PROMPT, 9, 8)]


@pytest.fixture(autouse=True)
def fixed_order() -> Iterator[None]:
    with ordered_products() if IS_INTERPRETED else nullcontext():
        yield


@cache
def backend(numerics: str) -> HFBackend:
    # two layers: keys and values of the second depend on the attention of the first
    model = random_model("qwen2", num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    made = HFBackend(model, device=KERNEL_DEVICE, dtype="float32", attention="segments", numerics=numerics)
    assert made.segment_tiles is not None
    # short splits, so that short texts have several
    made.segment_tiles = SegmentTiles(4, SPLIT if numerics == "invariant" else 64, made.segment_tiles.is_aligned)
    return made


class Bits(NamedTuple):
    """What must be the same, bit for bit."""

    tokens: Tokens
    logprobs: bytes
    hidden: bytes


def generate(
    numerics: str, prefixes: Sequence[Tokens], *, warm: Sequence[Tokens] = (), num_slots: int = 400,
    max_tokens: int = 4, **knobs: Unpack[EngineKnobs],
) -> tuple[list[Generation], int]:  # fmt: skip
    """The generations of one engine, whose cache holds the tokens of `warm`, and how often a branch was preempted."""
    with open_engine(backend(numerics), num_slots=num_slots, **knobs) as engine:
        for prefix in warm:
            request = GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=1), seed=99)
            asyncio.run(engine.generate([request]))
        params = SamplingParams(max_tokens=max_tokens, temperature=1.0)
        requests = [GenerationRequest(prefix=prefix, params=params, seed=7, hidden=True) for prefix in prefixes]
        return asyncio.run(engine.generate(requests)), engine.stats.preemptions


def bits_of(generation: Generation) -> Bits:
    assert generation.hidden is not None
    return Bits(generation.tokens, np.array(generation.logprobs).tobytes(), generation.hidden.tobytes())


@cache
def alone(numerics: str) -> Bits:
    (generation,), _ = generate(numerics, [PROMPT])
    return bits_of(generation)


def known_future(numerics: str) -> Speculation:
    """Drafts trees of which a part is what will be drawn."""
    return Speculation(FutureDrafter({7: PROMPT + alone(numerics).tokens}, 0.3), FixedController(5))


CASES: dict[str, dict[str, Any]] = {
    "beside others": {"prefixes": [OTHERS[0], PROMPT, OTHERS[3]]},
    "in chunks": {"max_batched_tokens": 6},
    "cached whole": {"warm": [PROMPT]},
    "cached and split": {"warm": [PROMPT[:5], PROMPT, (*PROMPT[:11], 1), (*PROMPT[:19], 2)]},
    "split and beside": {"warm": [PROMPT[:13]], "prefixes": [*OTHERS[:2], PROMPT], "max_batched_tokens": 9},
}


@pytest.mark.parametrize("case", CASES)
def test_a_request_has_its_bits_in_every_batch(case: str) -> None:
    options = {"prefixes": [PROMPT], **CASES[case]}
    generations, _ = generate("invariant", **options)
    assert bits_of(generations[options["prefixes"].index(PROMPT)]) == alone("invariant")


def test_preempted_branches_have_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.scheduler.HEADROOM_SLOTS", 0)  # both start, although both do not fit at the end
    other = PROMPT[:8:-1]
    expected = [bits_of(generate("invariant", [prefix], max_tokens=6)[0][0]) for prefix in (PROMPT, other)]
    generations, preemptions = generate("invariant", [PROMPT, other], num_slots=36, max_tokens=6)
    assert preemptions > 0
    assert [bits_of(generation) for generation in generations] == expected


def test_drafts_change_no_bit() -> None:
    generations, _ = generate("invariant", [PROMPT, OTHERS[2]], speculation=known_future("invariant"))
    assert bits_of(generations[0]) == alone("invariant")
    assert generations[0].usage.drafted > generations[0].usage.accepted > 0


def test_drafts_from_the_text_change_no_bit() -> None:
    speculation = Speculation(TreeDrafter(Stand()), FixedController(6))
    generations, _ = generate("invariant", [PROMPT], speculation=speculation)
    assert bits_of(generations[0]) == alone("invariant")
    assert generations[0].usage.drafted > 0


def test_replayed_graphs_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are filled up to the next count of a graph, and their arrays to other lengths."""
    made = backend("invariant")
    graphs = RoundGraphs(made.decoder, PretendedRecorder())  # type: ignore[arg-type]
    monkeypatch.setattr(made, "forward", torch.inference_mode()(graphs.run_batch))
    generations, _ = generate("invariant", [PROMPT, OTHERS[0], OTHERS[2]])
    assert bits_of(generations[0]) == alone("invariant")


def test_fast_numerics_differ_in_bits() -> None:
    """What the tests above compare can differ."""
    beside, _ = generate("fast", [PROMPT, OTHERS[0]])
    drafted, _ = generate("fast", [PROMPT], speculation=known_future("fast"))
    assert beside[0].tokens == alone("fast").tokens  # but for rounding they are the same
    assert len({bits_of(beside[0]), bits_of(drafted[0]), alone("fast")}) > 1


def read(made: HFBackend, sequences: Sequence[Tokens], max_batched_tokens: int = 2048) -> list[HeadOutputs]:
    kv_bytes = 400 * made.kv_bytes_per_token
    with closing(PrefillEngine(made, kv_bytes=kv_bytes, max_batched_tokens=max_batched_tokens)) as engine:
        return asyncio.run(engine.encode(sequences, [len(tokens) // 2 for tokens in sequences]))


def test_all_logits_of_a_text_have_their_bits_and_are_float32() -> None:
    made = backend("invariant")
    (expected,) = read(made, [PROMPT])
    for outputs in (read(made, [PROMPT, OTHERS[0]])[0], read(made, [OTHERS[1], PROMPT], 9)[1]):
        np.testing.assert_array_equal(outputs, expected)
    assert made.apply_head(torch.zeros(1, 32, device=KERNEL_DEVICE)).dtype == torch.float32
    near = read(backend("fast"), [PROMPT])[0]
    np.testing.assert_allclose(expected, near, atol=1e-4, rtol=1e-4)


def test_layers_of_a_reward_head_are_invariant_too() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)).to(KERNEL_DEVICE)
    model = random_model("llama", num_hidden_layers=1).model
    expected = head(torch.ones(1, 32, device=KERNEL_DEVICE))
    made = HFBackend(
        model, head=head, device=KERNEL_DEVICE, dtype="float32", attention="segments", numerics="invariant"
    )
    hidden = torch.randn(40, 32, device=KERNEL_DEVICE)
    hidden[17] = 1
    scores = made.apply_head(hidden)
    torch.testing.assert_close(scores[17:18], expected.detach())
    assert torch.equal(made.apply_head(hidden[17:18])[0], scores[17])
    with pytest.raises(ValueError, match="numerics=invariant cannot run a head of the type ReLU"):
        HFBackend(
            model, head=nn.ReLU(), device=KERNEL_DEVICE, dtype="float32", attention="segments", numerics="invariant"
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_cpu_the_compiled_decoder_keeps_the_promise(dtype: DType) -> None:
    if dtype == "bfloat16" and not cpu_features.multiplies_bfloat16():
        pytest.skip("this CPU has no products of bfloat16")
    made = HFBackend(random_model("qwen3", num_hidden_layers=1), device="cpu", dtype=dtype, numerics="invariant")
    assert (made.decoder_kind, made.segment_tiles) == ("compiled", None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "exact"}, "numerics must be one of fast, invariant; got 'exact'"),
        ({"dtype": "float64"}, "numerics=invariant cannot run in float64"),
        ({"decoder": "eager", "attention": "blocks"}, "numerics=invariant cannot run with decoder=eager"),
        ({"decoder": "compiled", "attention": "segments"}, "segments: decoder=compiled runs on a CPU over blocks"),
        ({"device": "cpu", "decoder": "eager"}, "compiled decoder: decoder=eager adds up"),
        ({"device": "cpu", "dtype": "bfloat16"}, "compiled decoder: its dtype is bfloat16, and neither AMX"),
    ],
)
def test_what_cannot_keep_the_promise_is_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda: False)
    with pytest.raises(ValueError, match=message):
        HFBackend(
            random_model("llama", num_hidden_layers=1),
            **{"device": KERNEL_DEVICE, "dtype": "float32", "numerics": "invariant", **options},
        )


def test_another_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="numerics=invariant cannot run this model: its activation is gelu"):
        HFBackend(random_model("llama", hidden_act="gelu"), device="cpu", dtype="float32", numerics="invariant")


def test_evictions_are_refused() -> None:
    policy = RandomEviction(6, 2)
    with (
        pytest.raises(ValueError, match="an eviction leaves gaps between positions"),
        open_engine(backend("invariant"), eviction=policy),
    ):
        pass
    with pytest.raises(ValueError, match=r"set eviction=none or engine\.numerics=fast"):
        LocalSettings(numerics="invariant").validate_eviction(policy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "exact"}, "numerics must be one of fast, invariant"),
        ({"numerics": "invariant", "dtype": "float64"}, "cannot run in float64"),
        ({"numerics": "invariant", "decoder": "eager", "attention": "blocks"}, "cannot run with decoder=eager and"),
    ],
)
def test_settings_are_refused_before_a_model_is_loaded(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalSettings(**options)


def test_settings_are_checked_against_this_machine() -> None:
    LocalSettings(numerics="invariant", device="cpu").require_packages()
    with pytest.raises(ValueError, match="numerics=invariant cannot run on a CPU but in the compiled decoder"):
        LocalSettings(numerics="invariant", device="cpu", decoder="eager").require_packages()

"""The puppet: a random body pays for every round, and the texts are the bundled writer's, token for token."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import accumulate, count

import pytest
import torch
from torch import Tensor

from decoding.core import Generation, GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.model.backend import Backend
from decoding.model.segments import SegmentTiles
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.speculation_gate import SpeculationGate
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.stats import EngineStats
from reason.bench.puppet import BODY_SCALE, IMPOSSIBLE, MINIATURE, Puppet, find_shape, make_body, make_puppet
from reason.bench.puppet_report import SHARES, make_tables
from reason.bench.puppet_search import SearchSettings, measure_searches
from reason.bench.workload import BundledTarget, make_questions
from tests.support.shared_beginnings import NEEDS_BFLOAT16

SETTINGS = (
    SamplingParams(max_tokens=40),
    SamplingParams(max_tokens=40, temperature=0.6, top_p=0.8),
    SamplingParams(max_tokens=25, temperature=0.0),
    SamplingParams(max_tokens=30, top_k=5, min_p=0.05),
)
DRAFTERS: dict[str, Callable[[], Speculation]] = {
    "plain": Speculation,
    "stand": lambda: Speculation(TreeDrafter(Stand()), FixedController(6), Coupled()),
    "suffix": lambda: Speculation(TreeDrafter(SuffixDecoding()), FixedController(6), Coupled()),
}


@cache
def writer() -> BundledTarget:
    return BundledTarget.load(device="cpu", dtype="float32")


def brain() -> HFBackend:
    backend = writer().backend
    assert isinstance(backend, HFBackend)
    return backend


@cache
def miniature(dtype: str = "float32") -> Puppet:
    return make_puppet(MINIATURE, brain(), dtype=dtype)


def requests() -> list[GenerationRequest]:
    """Four branches of each of two problems, one of each sampling setting."""
    questions = make_questions(writer().prompt, per_family=1, split="heldout")[:2]
    return [
        GenerationRequest(prefix=question.prompt, params=params, seed=seed, group=question.id)
        for question in questions
        for seed, params in enumerate(SETTINGS)
    ]


def generate(
    backend: Backend,
    work: list[GenerationRequest],
    speculation: Speculation | None = None,
    *,
    num_slots: int = 2000,
    live: int = 8,
) -> tuple[list[Generation], EngineStats]:
    engine = LocalEngine(
        backend,
        decode=lambda tokens: str(writer().tokenizer.decode(list(tokens), skip_special_tokens=False)),
        eos_ids=writer().eos_ids,
        kv_bytes=(num_slots + 1) * backend.kv_bytes_per_token,
        max_running_requests=live,
        speculation=speculation,
    )
    try:
        generations = asyncio.run(engine.generate(work))
        engine.assert_invariants()
        return generations, engine.stats
    finally:
        engine.close()


@cache
def own_texts() -> list[Generation]:
    """What the bundled writer generates by itself."""
    return generate(brain(), requests())[0]


@pytest.mark.parametrize("name", DRAFTERS)
def test_texts_are_those_of_the_bundled_writer(name: str) -> None:
    generations, stats = generate(miniature(), requests(), DRAFTERS[name]())
    assert [g.tokens for g in generations] == [g.tokens for g in own_texts()]
    for mine, expected in zip(generations, own_texts(), strict=True):
        assert mine.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert (stats.accepted > 0) == (name != "plain")


@NEEDS_BFLOAT16  # beside a compiled brain
@pytest.mark.parametrize("name", ["stand", "suffix"])
def test_drafts_change_no_text_of_a_body_in_bfloat16(name: str) -> None:
    plain, _ = generate(miniature("bfloat16"), requests())
    drafted, stats = generate(miniature("bfloat16"), requests(), DRAFTERS[name]())
    assert [g.tokens for g in drafted] == [g.tokens for g in plain]
    assert stats.accepted > 0


@pytest.mark.parametrize("name", ["plain", "stand"])
def test_starved_pool_preempts_and_changes_nothing(name: str) -> None:
    many = [replace(request, seed=seed, params=SETTINGS[0]) for seed in range(6) for request in requests()[::4]]
    least = max(len(request.prefix) + request.params.max_tokens for request in many)
    ample, _ = generate(brain(), many)
    starved, stats = generate(miniature(), many, DRAFTERS[name](), num_slots=least + 60, live=12)
    assert [g.tokens for g in starved] == [g.tokens for g in ample]
    assert stats.preemptions > 0


def test_branches_of_a_problem_share_its_prompt() -> None:
    _, stats = generate(miniature(), requests())
    shared = sum(len(request.prefix) - 1 for request in requests() if request.seed != 0)
    assert stats.cached_tokens >= shared
    assert stats.peak_resident_tokens < stats.peak_unshared_tokens


class WatchedPuppet(Puppet):
    """Stores the last pool that it made."""

    pool: Tensor

    def new_kv_pool(self, capacity: int) -> Tensor:
        self.pool = super().new_kv_pool(capacity)
        return self.pool


class WatchedBody:
    """A body by itself, which stores the last pool that it made."""

    pool: Tensor

    def __init__(self, body: HFBackend) -> None:
        self._body = body

    def __getattr__(self, name: str) -> object:
        return getattr(self._body, name)

    def new_kv_pool(self, capacity: int) -> Tensor:
        self.pool = self._body.new_kv_pool(capacity)
        return self.pool


def written_slots(pool: Tensor) -> list[int]:
    """Slots with KV; `[layers, heads, slots, 2 * size]`."""
    numbers: list[int] = pool.float().abs().sum(dim=(0, 1, 3)).nonzero()[:, 0].tolist()
    return numbers


@pytest.mark.parametrize("name", DRAFTERS)
def test_body_and_brain_write_the_same_slots(name: str) -> None:
    puppet = WatchedPuppet(miniature().body, brain(), MINIATURE.hidden_size)
    generate(puppet, requests(), DRAFTERS[name]())
    slots = written_slots(puppet.pool)
    assert len(slots) > 100
    assert written_slots(puppet.brain_pool(puppet.pool)) == slots


def test_kv_of_the_body_is_what_it_computes_for_the_text_of_the_brain() -> None:
    puppet = WatchedPuppet(miniature().body, brain(), MINIATURE.hidden_size)
    request = requests()[0]
    (generation,), _ = generate(puppet, [request])
    # the last token is not fed: nothing follows it
    text = (*request.prefix, *generation.tokens[:-1])
    alone = WatchedBody(miniature().body)
    generate(alone, [GenerationRequest(prefix=text, params=SamplingParams(max_tokens=1), seed=0)])  # type: ignore[arg-type]
    slots = slice(1, 1 + len(text))
    torch.testing.assert_close(puppet.pool[:, :, slots], alone.pool[:, :, slots], atol=1e-5, rtol=1e-4)


def test_bytes_of_a_token_are_the_sum_of_both() -> None:
    puppet = miniature()
    assert puppet.kv_bytes_per_token == puppet.body.kv_bytes_per_token + brain().kv_bytes_per_token
    pool = puppet.new_kv_pool(9)
    both = [pool, puppet.brain_pool(pool)]
    assert sum(part.numel() * part.itemsize for part in both) == 10 * puppet.kv_bytes_per_token


def hidden_states(rows: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the states of body and brain, and what a puppet makes of them."""
    generator = torch.Generator().manual_seed(0)
    of_body = torch.randn(rows, MINIATURE.hidden_size, generator=generator)
    of_brain = torch.randn(rows, 192, generator=generator)
    return of_body, of_brain, torch.cat([of_body * BODY_SCALE, of_brain], dim=1)


def test_every_column_of_the_head_is_computed_and_replaced_by_the_brain() -> None:
    puppet, (of_body, of_brain, both) = miniature(), hidden_states()
    logits, of_head = puppet.apply_head(both), puppet.body.apply_head(of_body)
    num_tokens = brain().vocab_size
    assert logits.shape == of_head.shape == (5, 2000)
    assert torch.equal(logits[:, :num_tokens], brain().apply_head(of_brain))
    assert torch.equal(logits[:, num_tokens:], of_head[:, num_tokens:] - IMPOSSIBLE)
    for temperature in (1.0, 100.0):
        log_p, expected = ((x / temperature).log_softmax(-1) for x in (logits, brain().apply_head(of_brain)))
        torch.testing.assert_close(log_p[:, :num_tokens], expected)
        assert not log_p[:, num_tokens:].exp().any()
        entropies = (torch.special.entr(x.exp()).sum(-1) for x in (log_p, expected))
        torch.testing.assert_close(*entropies)


def test_poisoned_head_of_the_body_shows_in_the_logits() -> None:
    shape = replace(MINIATURE, has_tied_head=False)
    model = shape.make_model(torch.device("cpu"), torch.float32)
    with torch.no_grad():
        model.lm_head.weight[1999] = torch.nan
    puppet = Puppet(HFBackend(model, device="cpu"), brain(), shape.hidden_size)
    is_nan = puppet.apply_head(hidden_states()[2]).isnan()
    assert is_nan[:, 1999].all()
    assert not is_nan[:, :1999].any()


def test_hidden_states_are_as_far_apart_as_those_of_the_brain() -> None:
    _, of_brain, both = hidden_states()
    distances = (torch.nn.functional.cosine_similarity(x[:1], x) for x in (both, of_brain))
    torch.testing.assert_close(*distances)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape must be one of qwen2.5-0.5b, .*; got gpt-5"):
        find_shape("gpt-5")
    with pytest.raises(ValueError, match=f"vocabulary of {brain().vocab_size} tokens does not fit the body's of 100"):
        make_puppet(replace(MINIATURE, vocab_size=100), brain())
    with pytest.raises(ValueError, match="dtype must be one of"):
        make_body(MINIATURE, device="cpu", dtype="int3")


def test_batches_are_cut_into_segments_that_both_can_run() -> None:
    body, small = copy.copy(miniature().body), copy.copy(brain())
    body.segment_tiles, small.segment_tiles = SegmentTiles(9, 256), SegmentTiles(32, 128)
    assert Puppet(body, small, MINIATURE.hidden_size).segment_tiles == SegmentTiles(9, 128)
    assert miniature().segment_tiles is None
    with pytest.raises(ValueError, match="same decoder and kind of attention"):
        Puppet(body, brain(), MINIATURE.hidden_size)
    small.device = torch.device("cuda:1")
    with pytest.raises(ValueError, match="must be on one device; got cpu and cuda:1"):
        Puppet(body, small, MINIATURE.hidden_size)


def test_body_of_a_cpu_gets_one_of_two_dtypes_and_random_weights() -> None:
    assert make_body(MINIATURE, device="cpu").dtype in (torch.float32, torch.bfloat16)
    model = MINIATURE.make_model(torch.device("cpu"), torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.equal(model.model.norm.weight, torch.ones(64))
    assert MINIATURE.count_weights() == sum(weights.numel() for weights in model.parameters())
    assert find_shape("qwen2.5-0.5b").count_weights() == 494_032_768  # as published


def test_body_beside_a_compiled_brain_gets_a_dtype_that_runs_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = copy.copy(brain())
    compiled.decoder_kind = "compiled"
    clock = accumulate(1 / n for n in count(1))  # bfloat16, which is timed last, seems faster
    monkeypatch.setattr("reason.bench.puppet.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("decoding.cpu_features.multiplies_bfloat16", lambda: False)
    assert make_puppet(MINIATURE, compiled).dtype == torch.float32


def test_table_has_a_dash_where_texts_need_not_be_those_of_plain_decoding() -> None:
    row = {
        "live": 4, "setup": "stand_rejection", "speeds": [1.5], "speed": 1.5, "tokens_per_s": 9.0, "rounds": 3,
        "tokens_per_forward": 2.0, "time_shares": dict.fromkeys(SHARES, 0.1), "trajectories": 8,
    }  # fmt: skip
    rows = [{**row, "num_differing": None}, {**row, "num_differing": 0}]
    (table,) = make_tables({"speed": rows, "searches": []})
    assert [cells[-1] for cells in table.rows] == ["-", "0 of 8"]


@pytest.mark.parametrize("search", ["best_of_n", "ets"])
def test_searches_decide_as_with_the_bundled_writer(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # whether drafts pay next to so small a body depends on the machine
    monkeypatch.setattr(SpeculationGate, "plan_round", lambda *_: "drafted")
    sizes = SearchSettings((search,), ("stand",), width=4, problems=2, laps=1, kv_mib=32)
    (point,) = measure_searches(writer(), miniature(), sizes)
    assert point.to_json()["num_differing"] == 0
    assert point.runs[0].stats.accepted > 0
    (direct,) = measure_searches(writer(), brain(), sizes)
    assert point.runs[0].count_differing(direct.runs[0]) == 0
    assert point.runs[0].num_correct == direct.runs[0].num_correct

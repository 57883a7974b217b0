"""The local engine on toy models: results do not depend on the batch, and slots are always freed."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

import pytest
from torch import Tensor

from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.model.backend import TokenBatch
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from tests.support.engines import TOKENIZER, make_request, mixed_requests, open_engine
from tests.support.fakes import HashBackend, ScriptedBackend


@lru_cache
def _run_alone(requests: tuple[GenerationRequest, ...]) -> list[Tokens]:
    with open_engine(HashBackend(), max_running_requests=1, max_batched_tokens=7) as engine:
        return [asyncio.run(engine.generate([r]))[0].tokens for r in requests]


def one_by_one(requests: list[GenerationRequest]) -> list[Tokens]:
    """The tokens of each request when no other runs."""
    return _run_alone(tuple(requests))


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"max_batched_tokens": 5},
        {"max_batched_tokens": 40},
        {"max_running_requests": 3},
        {"num_slots": 130},
        {"num_slots": 75, "max_batched_tokens": 9},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_batch_chunk_and_pool(knobs: dict[str, Any]) -> None:
    requests = mixed_requests(40)
    with open_engine(HashBackend(), **knobs) as engine:
        together = asyncio.run(engine.generate(requests))
    assert [g.tokens for g in together] == one_by_one(requests)


@pytest.mark.parametrize("seed", range(6))
def test_starved_pool_finishes_all_requests_with_the_same_tokens(seed: int) -> None:
    requests = mixed_requests(25, seed)
    least = max(len(r.prefix) + r.params.max_tokens for r in requests)
    with open_engine(HashBackend(), num_slots=least) as starved, open_engine(HashBackend()) as ample:
        few = asyncio.run(starved.generate(requests))
        many = asyncio.run(ample.generate(requests))
        assert [g.tokens for g in few] == [g.tokens for g in many]
        assert starved.stats.evicted_tokens > 0
        assert ample.stats.preemptions == 0


def test_preempted_branches_are_refilled_and_get_the_same_tokens() -> None:
    """Two branches fit when they start and not when they have grown."""
    requests = [make_request((i, 1, 2), i, max_tokens=120) for i in range(2)]
    with open_engine(HashBackend(), num_slots=150) as engine:
        tokens = [g.tokens for g in asyncio.run(engine.generate(requests))]
        assert engine.stats.preemptions > 0
        assert engine.stats.peak_resident_tokens <= 150
    assert tokens == one_by_one(requests)


def test_sibling_tokens_differ_and_equal_seeds_repeat() -> None:
    prefix = tuple(range(10))
    with open_engine(HashBackend()) as engine:
        first = asyncio.run(engine.generate([make_request(prefix, s, max_tokens=20) for s in (1, 2, 3, 1)]))
    tokens = [g.tokens for g in first]
    assert len(set(tokens)) == 3
    assert tokens[0] == tokens[3]


@pytest.mark.parametrize("max_batched_tokens", [1000, 7])
def test_sixteen_siblings_compute_their_prompt_once(max_batched_tokens: int) -> None:
    """All but the last prompt token, which each sibling feeds to choose its first token."""
    backend, prefix = HashBackend(), tuple(range(30))
    with open_engine(backend, max_batched_tokens=max_batched_tokens) as engine:
        done = asyncio.run(engine.generate([make_request(prefix, s, max_tokens=1) for s in range(16)]))
        assert backend.num_tokens == 30 + 15
        assert sorted(g.usage.cached_tokens for g in done) == [0] + [29] * 15
        assert engine.stats.cached_tokens == 29 * 15
        assert engine.stats.peak_resident_tokens <= 30 + 15
    with open_engine(backend) as engine:

        async def separately() -> None:
            await asyncio.gather(*(engine.generate([make_request(prefix, s, max_tokens=1)]) for s in range(16)))

        before = backend.num_tokens
        asyncio.run(separately())
        assert backend.num_tokens - before == 30 + 15


def test_prompts_with_a_common_prefix_compute_it_once() -> None:
    backend, common = HashBackend(), tuple(range(30))
    with open_engine(backend) as engine:
        asyncio.run(engine.generate([make_request((*common, s, s, s), s, max_tokens=1) for s in range(8)]))
    assert backend.num_tokens == 30 + 8 * 3


def test_siblings_store_their_prompt_once() -> None:
    with open_engine(HashBackend()) as engine:
        asyncio.run(engine.generate([make_request(tuple(range(30)) * 10, s, max_tokens=20) for s in range(16)]))
        stats = engine.stats
    assert stats.peak_resident_tokens <= 300 + 16 * 20
    assert stats.peak_unshared_tokens > 16 * 300
    assert stats.resident_tokens > 0
    assert len(stats.timeline) == stats.rounds


def test_continued_branch_finds_its_earlier_tokens_in_the_cache() -> None:
    backend, prefix = HashBackend(), tuple(range(20))
    with open_engine(backend) as engine:
        (first,) = asyncio.run(engine.generate([make_request(prefix, 1, max_tokens=10)]))
        (second,) = asyncio.run(engine.generate([make_request(prefix + first.tokens, 2, max_tokens=5)]))
    assert second.usage.cached_tokens == 29
    assert backend.num_tokens == 29 + 5


def test_usage_of_requests_sums_to_the_engine_stats() -> None:
    with open_engine(HashBackend(), max_batched_tokens=16) as engine:
        done = asyncio.run(engine.generate([make_request(tuple(range(30)), s, max_tokens=9) for s in range(3)]))
        total = engine.stats
    assert all(g.usage.calls == 1 and g.usage.tokens == len(g.tokens) == 9 for g in done)
    assert sum(g.usage.prompt_tokens for g in done) == total.prompt_tokens == 90
    assert sum(g.usage.cached_tokens for g in done) == total.cached_tokens
    assert total.tokens == 27
    assert done[0].usage.forwards == 2 + 8  # two chunks of prompt, the second of which gave a token


def generate_text(backend: HashBackend, **params: Any) -> tuple[str, Generation]:
    with open_engine(backend, eos_ids=[TOKENIZER.eos_id]) as engine:
        (done,) = asyncio.run(engine.generate([make_request(TOKENIZER.encode("Q:"), max_tokens=60, **params)]))
    return TOKENIZER.decode(done.tokens), done


@pytest.mark.parametrize(
    ("stop", "text", "finish"),
    [
        ((), "step é one\n\nstep two\n\nend", "eos"),
        (("\n\n",), "step é one\n\n", "stop"),
        (("two", "one\n"), "step é one\n", "stop"),
        (("é",), "step é", "stop"),
        (("absent", "Q:"), "step é one\n\nstep two\n\nend", "eos"),
        (("Q:s",), "step é one\n\nstep two\n\nend", "eos"),
    ],
    ids=str,
)
def test_stop_strings_span_tokens_and_ignore_the_prompt(stop: tuple[str, ...], text: str, finish: str) -> None:
    script = (*TOKENIZER.encode("Q:step é one\n\nstep two\n\nend"), TOKENIZER.eos_id)
    got, done = generate_text(ScriptedBackend(script), stop=stop)
    assert (got, done.finish) == (text, finish)


def test_stop_ids_and_length_include_the_last_token() -> None:
    script = TOKENIZER.encode("Q:abcdef")
    assert generate_text(ScriptedBackend(script), stop_token_ids=(ord("d"),))[0] == "abcd"
    text, done = generate_text(ScriptedBackend(script), stop_token_ids=(7,))
    assert (done.finish, len(text)) == ("length", 60)


def test_deadline_ends_a_branch_with_its_tokens_so_far() -> None:
    class Slow(HashBackend):
        def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
            time.sleep(0.01)
            return super().forward(batch, pool)

    with open_engine(Slow()) as engine:
        soon = GenerationRequest(
            prefix=(1, 2), params=SamplingParams(max_tokens=1000), seed=1, deadline=time.monotonic() + 0.1
        )
        past = GenerationRequest(prefix=(1, 2), params=SamplingParams(), seed=1, deadline=time.monotonic() - 1)
        some, none = asyncio.run(engine.generate([soon, past]))
    assert (some.finish, none.finish) == ("deadline", "deadline")
    assert 1 <= len(some.tokens) < 50
    assert none.tokens == ()


def test_cancelled_requests_free_their_slots_and_leave_the_others_alone() -> None:
    with open_engine(HashBackend()) as engine:

        async def run_scene() -> list[Generation]:
            gone = asyncio.create_task(engine.generate([make_request((1, 2, 3), s, max_tokens=3000) for s in range(4)]))
            stays = asyncio.create_task(engine.generate([make_request((1, 2, 4), 9, max_tokens=50)]))
            await asyncio.sleep(0.05)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            return await stays

        (done,) = asyncio.run(run_scene())
        engine.assert_invariants()
        assert len(done.tokens) == 50
        assert engine.stats.rounds < 2900


@pytest.mark.parametrize("seed", range(8))
def test_requests_cancelled_at_any_time_leave_nothing_behind(seed: int) -> None:
    """Before the engine sees them, while they wait, while they run, and when they are done."""
    rng = random.Random(seed)
    with open_engine(HashBackend(), max_running_requests=2) as engine:

        async def start_one(number: int) -> Generation:
            (generation,) = await engine.generate([make_request((1, 2, number % 5), number, max_tokens=40)])
            return generation

        async def run_scene() -> list[Generation | BaseException]:
            tasks = [asyncio.create_task(start_one(number)) for number in range(40)]
            for number in rng.sample(range(40), 25):
                await asyncio.sleep(rng.choice([0, 0, 0.002]))
                tasks[number].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        results = asyncio.run(run_scene())
        engine.assert_invariants()
    done = {number: result for number, result in enumerate(results) if isinstance(result, Generation)}
    assert len(done) >= 15
    assert all(isinstance(result, Generation | asyncio.CancelledError) for result in results)
    requests = [make_request((1, 2, number % 5), number, max_tokens=40) for number in done]
    assert [result.tokens for result in done.values()] == one_by_one(requests)


def test_exception_in_a_round_reaches_its_callers_and_the_engine_stays_usable() -> None:
    backend = HashBackend()
    with open_engine(backend) as engine:
        backend.fail_at = 5
        with pytest.raises(RuntimeError, match="the toy broke"):
            asyncio.run(engine.generate([make_request((1, 2, 3), s, max_tokens=20) for s in range(3)]))
        engine.assert_invariants()
        after = asyncio.run(engine.generate([make_request((1, 2, 3), 1, max_tokens=20)]))
    assert after[0].tokens == one_by_one([make_request((1, 2, 3), 1, max_tokens=20)])[0]


def test_generate_works_from_several_event_loops_and_threads() -> None:
    requests = mixed_requests(6)
    expected = one_by_one(requests)
    with open_engine(HashBackend()) as engine:

        async def in_threads() -> list[list[Generation]]:
            calls = (asyncio.to_thread(asyncio.run, engine.generate([r])) for r in requests)
            return list(await asyncio.gather(*calls))

        for _ in range(2):
            assert [g.tokens for g in asyncio.run(engine.generate(requests))] == expected
        assert [g.tokens for (g,) in asyncio.run(in_threads())] == expected


def test_requests_that_end_in_one_round_wake_their_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, calls = [replace(r, params=SamplingParams(max_tokens=3)) for r in mixed_requests(8)], 0

    async def generate() -> list[Generation]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def count(*args: Any) -> object:
            nonlocal calls
            calls += 1
            return wake(*args)

        await engine.generate(requests)  # their prompts are in the cache now: all begin in one round
        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        return await engine.generate(requests)

    with open_engine(HashBackend()) as engine:
        assert {len(generation.tokens) for generation in asyncio.run(generate())} == {3}
    assert calls == 1


def test_event_loop_stays_responsive_during_generate() -> None:
    with open_engine(HashBackend()) as engine:

        async def run_scene() -> int:
            work = asyncio.create_task(engine.generate([make_request((1,), 1, max_tokens=400)]))
            ticks = 0
            while not work.done():
                await asyncio.sleep(0.001)
                ticks += 1
            return ticks

        assert asyncio.run(run_scene()) > 5


def test_invalid_requests_are_refused_before_any_runs_with_the_numbers() -> None:
    backend = HashBackend(vocab_size=32)
    with open_engine(backend, num_slots=50) as engine:
        for bad, error, message in (
            (make_request((1, 32), max_tokens=5), ValueError, "token id 32 is outside the model's vocabulary of 32"),
            (make_request((1, -1)), ValueError, "token id -1"),
            (make_request((1,) * 40, max_tokens=11), OversizedRequest, "40 prefix.*max_tokens=11 = 51.*pool of 50"),
            (make_request((1,) * 40, max_tokens=5000), OversizedRequest, "window of 4096"),
        ):
            with pytest.raises(error, match=message):
                asyncio.run(engine.generate([make_request((1, 2), max_tokens=5), bad]))
        assert backend.forwards == 0
        assert asyncio.run(engine.generate([])) == []
        fits = asyncio.run(engine.generate([make_request((1,) * 40, max_tokens=10)]))
        assert len(fits[0].tokens) == 10


def test_closed_engine_refuses_requests_and_cancels_those_in_flight() -> None:
    engine = LocalEngine(HashBackend(), decode=TOKENIZER.decode, kv_bytes=5000)

    async def run_scene() -> None:
        work = asyncio.create_task(engine.generate([make_request((1, 2), 1, max_tokens=4000)]))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(engine.close)
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(run_scene())
    engine.close()
    engine.assert_invariants()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(engine.generate([make_request((1,))]))


class PoolObserver(HashBackend):
    """Refers weakly to its last pool: None once no engine holds it."""

    def new_kv_pool(self, capacity: int) -> Tensor:
        pool = super().new_kv_pool(capacity)
        self.pool = weakref.ref(pool)
        return pool


def test_closed_engine_frees_its_model_and_its_pool_at_once() -> None:
    backend = PoolObserver()
    model, engine = weakref.ref(backend), LocalEngine(backend, decode=TOKENIZER.decode, kv_bytes=5000)
    asyncio.run(engine.generate([make_request((1, 2), max_tokens=5)]))
    gc.collect()
    gc.disable()
    try:
        engine.close()
        assert backend.pool() is None
        del engine, backend
        assert model() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("num_slots", [4000, 70])
def test_tokens_are_told_as_they_come_whatever_the_drafts_and_the_pool(num_slots: int) -> None:
    requests = mixed_requests(20, seed=3)
    runs: list[list[Sequence[int]]] = [[] for _ in requests]
    telling = [replace(each, on_tokens=runs[i].append) for i, each in enumerate(requests)]
    assert telling == requests
    speculation = Speculation(TreeDrafter(Stand()), FixedController(8))
    with open_engine(HashBackend(), num_slots=num_slots, speculation=speculation) as engine:
        generations = asyncio.run(engine.generate(telling))
    assert [tuple(chain(*each)) for each in runs] == [each.tokens for each in generations]
    assert max(map(len, chain(*runs))) > 1


@pytest.mark.parametrize("knobs", [{"max_running_requests": 0}, {"max_batched_tokens": True}, {"kv_bytes": 0}], ids=str)
def test_invalid_knobs_are_refused_by_name(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        LocalEngine(HashBackend(), decode=TOKENIZER.decode, **{"kv_bytes": 100, **knobs})

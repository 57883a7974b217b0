"""The engine on toy models: what it promises whatever is in the batch, and that pages always come back."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from tests.support.fakes import ByteTokenizer, HashBackend, ScriptedBackend

TOKENIZER = ByteTokenizer()


@contextmanager
def engine_of(backend: HashBackend, *, pages: int = 4000, **knobs: Any) -> Iterator[LocalEngine]:
    """An engine with `pages` pages, checked and closed afterwards."""
    engine = LocalEngine(backend, decode=TOKENIZER.decode, kv_bytes=pages + 1, **knobs)
    try:
        yield engine
        engine.check()
    finally:
        engine.close()


def request(prefix: Tokens, seed: int = 0, **params: Any) -> GenerationRequest:
    return GenerationRequest(prefix=prefix, params=SamplingParams(**params), seed=seed)


def mixed_requests(count: int, seed: int = 0) -> list[GenerationRequest]:
    """Branches of a few problems, in various depths, with various settings."""
    rng = random.Random(seed)
    problems = [tuple(rng.randrange(32) for _ in range(rng.randint(5, 40))) for _ in range(3)]
    requests = []
    for i in range(count):
        prefix = rng.choice(problems)
        prefix += tuple(rng.randrange(2) for _ in range(rng.randint(0, 6)))
        settings: dict[str, Any] = rng.choice(
            [{"temperature": 0.0}, {}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}]
        )
        requests.append(request(prefix, i, max_tokens=rng.randint(1, 25), **settings))
    return requests


@lru_cache
def _alone(requests: tuple[GenerationRequest, ...]) -> list[Tokens]:
    with engine_of(HashBackend(), max_running=1, max_rows=7) as engine:
        return [asyncio.run(engine.generate([r]))[0].tokens for r in requests]


def one_by_one(requests: list[GenerationRequest]) -> list[Tokens]:
    """What each request gives when nothing else runs."""
    return _alone(tuple(requests))


@pytest.mark.parametrize(
    "knobs",
    [{}, {"max_rows": 5}, {"max_rows": 40}, {"max_running": 3}, {"pages": 130}, {"pages": 75, "max_rows": 9}],
    ids=str,
)
def test_same_seed_same_tokens_whatever_the_batch_chunk_and_pool(knobs: dict[str, Any]) -> None:
    requests = mixed_requests(40)
    with engine_of(HashBackend(), **knobs) as engine:
        together = asyncio.run(engine.generate(requests))
    assert [g.tokens for g in together] == one_by_one(requests)


@pytest.mark.parametrize("seed", range(6))
def test_a_starved_pool_finishes_everything_with_the_same_tokens(seed: int) -> None:
    requests = mixed_requests(25, seed)
    least = max(len(r.prefix) + r.params.max_tokens for r in requests)
    with engine_of(HashBackend(), pages=least) as starved, engine_of(HashBackend()) as ample:
        few = asyncio.run(starved.generate(requests))
        many = asyncio.run(ample.generate(requests))
        assert [g.tokens for g in few] == [g.tokens for g in many]
        assert starved.stats.evicted_tokens > 0
        assert ample.stats.preemptions == 0


def test_preempted_branches_are_refilled_and_go_on_as_if_nothing_happened() -> None:
    """Two branches fit when they start and not when they have grown."""
    requests = [request((i, 1, 2), i, max_tokens=120) for i in range(2)]
    with engine_of(HashBackend(), pages=150) as engine:
        tokens = [g.tokens for g in asyncio.run(engine.generate(requests))]
        assert engine.stats.preemptions > 0
        assert engine.stats.peak_resident_tokens <= 150
    assert tokens == one_by_one(requests)


def test_siblings_differ_and_a_seed_repeats() -> None:
    prefix = tuple(range(10))
    with engine_of(HashBackend()) as engine:
        first = asyncio.run(engine.generate([request(prefix, s, max_tokens=20) for s in (1, 2, 3, 1)]))
    tokens = [g.tokens for g in first]
    assert len(set(tokens)) == 3
    assert tokens[0] == tokens[3]


@pytest.mark.parametrize("max_rows", [1000, 7])
def test_sixteen_siblings_compute_their_prompt_once(max_rows: int) -> None:
    """All but the last prompt token, which each sibling feeds to choose its first token."""
    backend, prefix = HashBackend(), tuple(range(30))
    with engine_of(backend, max_rows=max_rows) as engine:
        done = asyncio.run(engine.generate([request(prefix, s, max_tokens=1) for s in range(16)]))
        assert backend.rows == 30 + 15
        assert sorted(g.spent.cached_tokens for g in done) == [0] + [29] * 15
        assert engine.stats.cached_tokens == 29 * 15
        assert engine.stats.peak_resident_tokens <= 30 + 15
    with engine_of(backend) as engine:

        async def separately() -> None:
            await asyncio.gather(*(engine.generate([request(prefix, s, max_tokens=1)]) for s in range(16)))

        before = backend.rows
        asyncio.run(separately())
        assert backend.rows - before == 30 + 15


def test_prompts_with_a_common_beginning_compute_it_once() -> None:
    backend, common = HashBackend(), tuple(range(30))
    with engine_of(backend) as engine:
        asyncio.run(engine.generate([request((*common, s, s, s), s, max_tokens=1) for s in range(8)]))
    assert backend.rows == 30 + 8 * 3


def test_siblings_hold_their_prompt_once() -> None:
    with engine_of(HashBackend()) as engine:
        asyncio.run(engine.generate([request(tuple(range(30)) * 10, s, max_tokens=20) for s in range(16)]))
        stats = engine.stats
    assert stats.peak_resident_tokens <= 300 + 16 * 20
    assert stats.peak_unshared_tokens > 16 * 300
    assert stats.resident_tokens > 0
    assert len(stats.timeline) == stats.rounds


def test_a_continued_branch_finds_what_it_generated_before() -> None:
    backend, prefix = HashBackend(), tuple(range(20))
    with engine_of(backend) as engine:
        (first,) = asyncio.run(engine.generate([request(prefix, 1, max_tokens=10)]))
        (second,) = asyncio.run(engine.generate([request(prefix + first.tokens, 2, max_tokens=5)]))
    assert second.spent.cached_tokens == 29
    assert backend.rows == 29 + 5


def test_spent_adds_up() -> None:
    with engine_of(HashBackend(), max_rows=16) as engine:
        done = asyncio.run(engine.generate([request(tuple(range(30)), s, max_tokens=9) for s in range(3)]))
        total = engine.stats
    assert all(g.spent.calls == 1 and g.spent.tokens == len(g.tokens) == 9 for g in done)
    assert sum(g.spent.prompt_tokens for g in done) == total.prompt_tokens == 90
    assert sum(g.spent.cached_tokens for g in done) == total.cached_tokens
    assert total.tokens == 27
    assert done[0].spent.forwards == 2 + 8  # two chunks of prompt, the second of which gave a token


def generate_text(backend: HashBackend, **params: Any) -> tuple[str, Generation]:
    with engine_of(backend, eos_ids=[TOKENIZER.eos_id]) as engine:
        (done,) = asyncio.run(engine.generate([request(TOKENIZER.encode("Q:"), max_tokens=60, **params)]))
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
def test_stop_strings_straddle_tokens_and_ignore_the_prompt(stop: tuple[str, ...], text: str, finish: str) -> None:
    script = (*TOKENIZER.encode("Q:step é one\n\nstep two\n\nend"), TOKENIZER.eos_id)
    got, done = generate_text(ScriptedBackend(script), stop=stop)
    assert (got, done.finish) == (text, finish)


def test_stop_ids_and_length_include_the_last_token() -> None:
    script = TOKENIZER.encode("Q:abcdef")
    assert generate_text(ScriptedBackend(script), stop_token_ids=(ord("d"),))[0] == "abcd"
    text, done = generate_text(ScriptedBackend(script), stop_token_ids=(7,))
    assert (done.finish, len(text)) == ("length", 60)


def test_a_deadline_ends_a_branch_with_what_it_has() -> None:
    class Slow(HashBackend):
        def forward(self, batch: Any, pool: Any) -> Any:
            time.sleep(0.01)
            return super().forward(batch, pool)

    with engine_of(Slow()) as engine:
        soon = GenerationRequest(
            prefix=(1, 2), params=SamplingParams(max_tokens=1000), seed=1, deadline=time.monotonic() + 0.1
        )
        past = GenerationRequest(prefix=(1, 2), params=SamplingParams(), seed=1, deadline=time.monotonic() - 1)
        some, none = asyncio.run(engine.generate([soon, past]))
    assert (some.finish, none.finish) == ("deadline", "deadline")
    assert 1 <= len(some.tokens) < 50
    assert none.tokens == ()


def test_cancelling_returns_the_pages_and_leaves_the_others_alone() -> None:
    with engine_of(HashBackend()) as engine:

        async def scene() -> list[Generation]:
            gone = asyncio.create_task(engine.generate([request((1, 2, 3), s, max_tokens=3000) for s in range(4)]))
            stays = asyncio.create_task(engine.generate([request((1, 2, 4), 9, max_tokens=50)]))
            await asyncio.sleep(0.05)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            return await stays

        (done,) = asyncio.run(scene())
        engine.check()
        assert len(done.tokens) == 50
        assert engine.stats.rounds < 2900


def test_an_exception_in_a_round_reaches_its_callers_and_the_engine_lives_on() -> None:
    backend = HashBackend()
    with engine_of(backend) as engine:
        backend.fail_at = 5
        with pytest.raises(RuntimeError, match="the toy broke"):
            asyncio.run(engine.generate([request((1, 2, 3), s, max_tokens=20) for s in range(3)]))
        engine.check()
        after = asyncio.run(engine.generate([request((1, 2, 3), 1, max_tokens=20)]))
    assert after[0].tokens == one_by_one([request((1, 2, 3), 1, max_tokens=20)])[0]


def test_works_from_several_event_loops_and_threads() -> None:
    requests = mixed_requests(6)
    expected = one_by_one(requests)
    with engine_of(HashBackend()) as engine:

        async def in_threads() -> list[list[Generation]]:
            calls = (asyncio.to_thread(asyncio.run, engine.generate([r])) for r in requests)
            return list(await asyncio.gather(*calls))

        for _ in range(2):
            assert [g.tokens for g in asyncio.run(engine.generate(requests))] == expected
        assert [g.tokens for (g,) in asyncio.run(in_threads())] == expected


def test_the_event_loop_stays_free() -> None:
    with engine_of(HashBackend()) as engine:

        async def scene() -> int:
            work = asyncio.create_task(engine.generate([request((1,), 1, max_tokens=400)]))
            ticks = 0
            while not work.done():
                await asyncio.sleep(0.001)
                ticks += 1
            return ticks

        assert asyncio.run(scene()) > 5


def test_refusals_come_before_anything_runs_and_name_the_numbers() -> None:
    backend = HashBackend(vocab_size=32)
    with engine_of(backend, pages=50) as engine:
        for bad, error, message in (
            (request((1, 32), max_tokens=5), ValueError, "token id 32 is outside the model's vocabulary of 32"),
            (request((1, -1)), ValueError, "token id -1"),
            (request((1,) * 40, max_tokens=11), OversizedRequest, "40 prefix.*max_tokens=11 = 51.*pool of 50"),
            (request((1,) * 40, max_tokens=5000), OversizedRequest, "window of 4096"),
        ):
            with pytest.raises(error, match=message):
                asyncio.run(engine.generate([request((1, 2), max_tokens=5), bad]))
        assert backend.forwards == 0
        assert asyncio.run(engine.generate([])) == []
        fits = asyncio.run(engine.generate([request((1,) * 40, max_tokens=10)]))
        assert len(fits[0].tokens) == 10


def test_a_closed_engine_says_so_and_cancels_what_is_in_flight() -> None:
    engine = LocalEngine(HashBackend(), decode=TOKENIZER.decode, kv_bytes=5000)

    async def scene() -> None:
        work = asyncio.create_task(engine.generate([request((1, 2), 1, max_tokens=4000)]))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(engine.close)
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(scene())
    engine.close()
    engine.check()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(engine.generate([request((1,))]))


class PoolOnLoan(HashBackend):
    """Knows its last pool for as long as somebody holds it."""

    def new_pool(self, pages: int) -> Any:
        made = super().new_pool(pages)
        self.pool = weakref.ref(made)
        return made


def test_a_closed_engine_gives_its_model_and_its_pool_back_at_once() -> None:
    backend = PoolOnLoan()
    model, engine = weakref.ref(backend), LocalEngine(backend, decode=TOKENIZER.decode, kv_bytes=5000)
    asyncio.run(engine.generate([request((1, 2), max_tokens=5)]))
    gc.collect()
    gc.disable()
    try:
        engine.close()
        assert backend.pool() is None
        del engine, backend
        assert model() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("knobs", [{"max_running": 0}, {"max_rows": True}, {"kv_bytes": 0}], ids=str)
def test_nonsense_knobs_are_refused_by_name(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        LocalEngine(HashBackend(), decode=TOKENIZER.decode, **{"kv_bytes": 100, **knobs})

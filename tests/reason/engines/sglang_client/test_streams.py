"""Long generations are streamed: what has come is neither lost nor generated again, whatever becomes of its server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.engines.http.errors import NoServer
from reason.engines.sglang_client.engine import SGLangEngine
from tests.support.scripted_sglang_server import ScriptedSGLangServer

PREFIX = (1, 2)
Serve = Callable[..., ScriptedSGLangServer]
Connect = Callable[..., SGLangEngine]


@pytest.fixture
def serve(serve: Serve) -> Serve:
    """Servers with noise by position, and room for long texts."""
    return partial(serve, seeded=True, info={"context_length": 99_999})


def ask(max_tokens: int = 6000, *, deadline: float | None = None, json_schema: str | None = None) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens)
    return GenerationRequest(
        prefix=PREFIX, params=params, seed=7, group="p", deadline=deadline, json_schema=json_schema
    )


def run(engine: SGLangEngine, request: GenerationRequest) -> Generation:
    (generation,) = asyncio.run(engine.generate([request]))
    return generation


@pytest.mark.parametrize("increments", [True, False])
def test_worker_lost_at_token_5000_costs_no_token(serve: Serve, connect: Connect, increments: bool) -> None:
    undisturbed = run(connect(serve(increments=increments)), ask())
    first, second = serve("cut", cut_after=5000, increments=increments), serve(increments=increments)
    engine = connect(first, second)
    generation = run(engine, ask())
    asked_again = second.generations[0]["sampling_params"]["max_new_tokens"] - (6000 - 5000)
    assert asked_again == 0
    assert second.generations[0]["input_ids"] == [*PREFIX, *undisturbed.tokens[:5000]]
    assert (generation.tokens, generation.logprobs) == (undisturbed.tokens, undisturbed.logprobs)
    assert (generation.finish, generation.usage.tokens, generation.usage.prompt_tokens) == ("length", 6000, 2)
    assert generation.usage.forwards == 6000
    stats = engine.stats
    assert (stats.reissued, stats.resumed, stats.kept_tokens, stats.tokens, stats.arriving) == (1, 1, 5000, 6000, 0)


def test_short_generation_is_no_stream_and_null_streams_none(serve: Serve, connect: Connect) -> None:
    server = serve()
    run(connect(server), ask(1023))
    run(connect(server), ask(1024))
    run(connect(server, stream_from_tokens=None), ask(6000))
    assert [body["stream"] for body in server.generations] == [False, True, False]


def test_lost_end_of_a_complete_generation_asks_for_nothing(serve: Serve, connect: Connect) -> None:
    first, second = serve("cut", cut_after=2000), serve()
    generation = run(connect(first, second), ask(2000))
    assert (generation.usage.tokens, generation.finish) == (2000, "length")
    assert second.generations == []
    almost, third = serve("cut", cut_after=2000), serve()
    assert run(connect(almost, third), ask(2001)).usage.tokens == 2001
    assert [body["sampling_params"]["max_new_tokens"] for body in third.generations] == [1]


def test_several_losses_far_apart_do_not_end_a_generation(serve: Serve, connect: Connect) -> None:
    server = serve(*["cut"] * 5, cut_after=1000)
    generation = run(connect(server, max_retries=2), ask())
    assert generation.tokens == run(connect(serve()), ask()).tokens
    assert [len(body["input_ids"]) for body in server.generations] == [2, 1002, 2002, 3002, 4002, 5002]


def test_losses_close_to_each_other_end_it(serve: Serve, connect: Connect) -> None:
    server = serve(*["cut"] * 9, cut_after=10)
    with pytest.raises(NoServer, match="2 replies to this request were lost"):
        run(connect(server, max_retries=2), ask())


def test_silence_between_tokens_is_a_loss_and_the_silent_server_gets_an_abort(serve: Serve, connect: Connect) -> None:
    silent, other = serve("hang", cut_after=400), serve()
    engine = connect(silent, other, idle_timeout_s=1.0)
    assert run(engine, ask(2000)).usage.tokens == 2000
    assert [len(body["input_ids"]) for body in other.generations] == [402]
    engine.close()
    assert silent.aborted == [silent.generations[0]["rid"]]


def test_deadline_keeps_what_has_come_even_where_no_abort_is_answered(serve: Serve, connect: Connect) -> None:
    router = serve("hang", cut_after=400, router=True)
    generation = run(connect(router), ask(2000, deadline=time.monotonic() + 0.5))
    assert (generation.usage.tokens, generation.finish) == (400, "deadline")


def test_generation_that_follows_a_schema_begins_anew(serve: Serve, connect: Connect) -> None:
    first, second = serve("cut", cut_after=100), serve()
    engine = connect(first, second)
    run(engine, ask(2000, json_schema="{}"))
    assert second.generations[0]["input_ids"] == [*PREFIX]
    assert (engine.stats.resumed, engine.stats.tokens) == (0, 2000)


def test_cancelled_vote_is_aborted_and_its_tokens_count(serve: Serve, connect: Connect) -> None:
    server = serve("hang", cut_after=400)
    engine = connect(server)

    async def scenario() -> None:
        pending = asyncio.create_task(engine.generate([ask(2000)]))
        while engine.stats.tokens < 400:  # they count while they arrive
            await asyncio.sleep(0.01)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending

    asyncio.run(scenario())
    engine.close()
    assert server.aborted == [server.generations[0]["rid"]]
    assert (engine.stats.tokens, engine.stats.arriving) == (400, 0)

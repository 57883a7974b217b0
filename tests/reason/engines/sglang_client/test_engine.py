"""Whatever a server does, a branch is answered once, from a server that lives, or fails with one sentence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams
from decoding.stopping import StopRule
from reason.engines.sglang_client.client import Client
from reason.engines.sglang_client.engine import RemoteEngine
from reason.engines.sglang_client.errors import NoServer, Refused
from tests.support.scripted_sglang_server import Act, ByteVocabulary, ScriptedServer

Serve = Callable[..., ScriptedServer]
Connect = Callable[..., RemoteEngine]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ScriptedServer] = []

    def start(*script: Act, **more: Any) -> ScriptedServer:
        servers.append(ScriptedServer(script, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    engines: list[RemoteEngine] = []

    def start(*servers: ScriptedServer, **more: Any) -> RemoteEngine:
        vocabulary = ByteVocabulary()
        settings: dict[str, Any] = {"vocab_size": 257, "tokenizer": vocabulary}
        settings |= {key: more.pop(key) for key in tuple(more) if key in settings}
        client = Client([s.url for s in servers], **({"rest_s": 0.2, "patience_s": 20} | more))
        rule = StopRule(lambda ids: vocabulary.decode(ids), frozenset({256}))
        engines.append(RemoteEngine(client, stop_rule=rule, **settings))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ask(prefix: tuple[int, ...] = (1, 2), *, group: str = "p", deadline: float | None = None, **params: Any) -> Any:
    return GenerationRequest(
        prefix=prefix, params=SamplingParams(**params), seed=2**63 + 7, group=group, deadline=deadline
    )


def run(engine: RemoteEngine, *requests: GenerationRequest) -> list[Generation]:
    return asyncio.run(engine.generate(requests))


def test_a_request_says_everything_and_its_reply_is_a_generation(serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server)
    (generation,) = run(engine, ask(temperature=0.5, top_p=0.9, stop=("zz",), stop_token_ids=(9,), max_tokens=7))
    (body,) = server.generations
    assert body["input_ids"] == [1, 2]
    assert body["sampling_params"] == {
        "max_new_tokens": 7,
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 0.9,
        "min_p": 0.0,
        "stop": ["zz"],
        "stop_token_ids": [9],
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "sampling_seed": -(2**63) + 7,
        "custom_params": {"problem_id": "p"},
    }
    assert (bytes(generation.tokens[:-1]), generation.tokens[-1], generation.finish) == (b"hello", 256, "eos")
    spent = generation.spent
    assert (spent.calls, spent.tokens, spent.prompt_tokens, spent.cached_tokens, spent.forwards) == (1, 6, 2, 1, 6)
    assert (engine.stats.tokens, engine.stats.cached_tokens, engine.stats.running, engine.stats.waiting) == (6, 1, 0, 0)


@pytest.mark.parametrize(
    ("params", "said", "finish"),
    [
        ({"stop": ("ll",)}, b"hell", "stop"),
        ({"stop": ("o",)}, b"hello", "stop"),
        ({"stop_token_ids": (ord("e"),)}, b"he", "stop"),
        ({"max_tokens": 2}, b"he", "length"),
    ],
)
def test_it_ends_where_our_own_engine_would(
    serve: Serve, connect: Connect, params: dict[str, Any], said: bytes, finish: str
) -> None:
    (generation,) = run(connect(serve()), ask(**params))
    assert (bytes(generation.tokens), generation.finish) == (said, finish)
    assert len(generation.logprobs) == generation.spent.tokens == len(said)


def test_a_full_queue_is_waited_for(serve: Serve, connect: Connect) -> None:
    server = serve("full", "full", "full", "full")
    engine = connect(server)
    (generation,) = run(engine, ask())
    assert (generation.finish, len(server.generations), engine.stats.full, engine.stats.reissued) == ("eos", 5, 4, 0)


def test_no_server_has_more_than_it_may_and_the_others_wait_here(serve: Serve, connect: Connect) -> None:
    server = serve(*["hang"] * 3)
    engine = connect(server, most=3)

    async def story() -> list[Generation]:
        asked = asyncio.gather(*(engine.generate([ask()]) for _ in range(8)))
        while engine.stats.waiting < 5 or len(server.under_way) < 3:
            await asyncio.sleep(0.01)
        assert len(server.generations) == engine.stats.running == 3
        server.release()
        return [generation for (generation,) in await asked]

    assert len(asyncio.run(story())) == 8


@pytest.mark.parametrize("act", ["die", "cut", "crash_500"])
def test_what_a_server_loses_is_asked_of_another(serve: Serve, connect: Connect, act: Act) -> None:
    first, second = serve(act), serve()
    engine = connect(first, second)
    (generation,) = run(engine, ask())
    assert (generation.finish, engine.stats.reissued) == ("eos", 1)
    assert (len(first.generations), len(second.generations)) == (1, 1)
    assert first.generations[0]["rid"] != second.generations[0]["rid"]


def test_a_server_that_hangs_is_given_up_and_told_so(serve: Serve, connect: Connect) -> None:
    first, second = serve("hang"), serve()
    engine = connect(first, second, request_timeout_s=0.5)
    (generation,) = run(engine, ask())
    assert generation.finish == "eos"
    engine.close()  # waits for what is said aside
    assert first.aborted == [first.generations[0]["rid"]]


def test_a_request_that_loses_every_server_fails_before_all_are_down(serve: Serve, connect: Connect) -> None:
    servers = [serve("die"), serve("die"), serve("die"), serve()]
    with pytest.raises(NoServer, match="3 servers were lost over this request"):
        run(connect(*servers), ask())
    assert not servers[3].generations


def test_a_dead_server_is_waited_for_and_nothing_is_lost(serve: Serve, connect: Connect) -> None:
    first = serve(*["hang"] * 4)
    engine, servers = connect(first), [first]

    async def story() -> list[Generation]:
        asked = asyncio.gather(*(engine.generate([ask()]) for _ in range(4)))
        while len(first.under_way) < 4:
            await asyncio.sleep(0.01)
        first.close()
        while engine.stats.reissued < 4:
            await asyncio.sleep(0.01)
        servers.append(serve(port=first.port))
        return [generation for (generation,) in await asked]

    assert [generation.finish for generation in asyncio.run(story())] == ["eos"] * 4
    assert len(servers[1].generations) == 4


def test_patience_ends_with_the_address(serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server, patience_s=0.3)
    server.close()
    with pytest.raises(NoServer, match=rf"{server.url}.*gave up after 0.3 s"):
        run(engine, ask())


def test_a_router_without_workers_is_waited_for(serve: Serve, connect: Connect) -> None:
    server = serve("no_workers", "no_workers")
    assert run(connect(server), ask())[0].finish == "eos"


@pytest.mark.parametrize("act", ["native_400", "openai_400"])
def test_both_shapes_of_an_error_become_its_sentence(serve: Serve, connect: Connect, act: Act) -> None:
    server = serve(act)
    with pytest.raises(Refused, match=r"/generate says 400: top_p must be in \(0, 1\]$"):
        run(connect(server), ask())
    assert len(server.generations) == 1


def test_what_is_too_long_is_not_sent_and_what_the_server_finds_too_long_is_the_same_error(
    serve: Serve, connect: Connect
) -> None:
    server = serve("too_long", info={"context_length": 64})
    engine = connect(server)
    with pytest.raises(OversizedRequest, match=r"2 prefix tokens \+ max_tokens=63 = 65 tokens exceed"):
        run(engine, ask(max_tokens=63))
    assert not server.generations
    with pytest.raises(OversizedRequest, match="context length"):
        run(engine, ask(max_tokens=9))


@pytest.mark.parametrize("wrong", [(257,), (1, -1, 2)])
def test_an_id_that_would_kill_the_server_is_never_sent(serve: Serve, connect: Connect, wrong: tuple[int, ...]) -> None:
    server = serve()
    with pytest.raises(ValueError, match="outside the model's vocabulary of 257"):
        run(connect(server), ask(), ask(wrong))
    assert not server.generations


def test_cancelling_takes_requests_back(serve: Serve, connect: Connect) -> None:
    server = serve("hang", "hang")
    engine = connect(server)

    async def story() -> None:
        asked = asyncio.create_task(engine.generate([ask(), ask()]))
        while len(server.under_way) < 2:
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(story())
    engine.close()
    assert sorted(server.aborted) == sorted(body["rid"] for body in server.generations)
    assert (engine.stats.running, engine.stats.waiting, engine.stats.aborted) == (0, 0, 2)


def test_closing_takes_requests_back(serve: Serve, connect: Connect) -> None:
    server = serve("hang")
    engine = connect(server)

    async def story() -> None:
        asked = asyncio.create_task(engine.generate([ask()]))
        while not server.under_way:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.close)
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(story())
    assert server.aborted == [server.generations[0]["rid"]]
    with pytest.raises(RuntimeError, match="closed"):
        run(engine, ask())


def test_at_the_deadline_there_is_what_there_is(serve: Serve, connect: Connect) -> None:
    server = serve("hang")
    (generation,) = run(connect(server), ask(deadline=time.monotonic() + 0.3))
    assert (bytes(generation.tokens), generation.finish) == (b"hel", "deadline")


def test_a_deadline_ends_the_wait_for_a_server_too(serve: Serve, connect: Connect) -> None:
    server = serve(*["full"] * 99)
    (generation,) = run(connect(server), ask(deadline=time.monotonic() + 0.3))
    assert (generation.tokens, generation.finish, generation.spent.prompt_tokens) == ((), "deadline", 2)


def test_nothing_is_sent_after_the_deadline(serve: Serve, connect: Connect) -> None:
    server = serve()
    (generation,) = run(connect(server), ask(deadline=time.monotonic() - 1))
    assert (generation.finish, server.generations) == ("deadline", [])


def test_a_problem_stays_with_its_server_and_problems_are_dealt_out(serve: Serve, connect: Connect) -> None:
    servers = [serve(), serve()]
    engine = connect(*servers)

    async def story() -> None:
        for _ in range(3):
            await asyncio.gather(*(engine.generate([ask(group=str(i)) for _ in range(2)]) for i in range(8)))

    asyncio.run(story())
    groups = [[body["sampling_params"]["custom_params"]["problem_id"] for body in s.generations] for s in servers]
    assert not set(groups[0]) & set(groups[1])
    assert sorted(groups[0] + groups[1]) == sorted(6 * [str(i) for i in range(8)])
    assert min(map(len, groups)) > 0


def test_logprobs_are_at_temperature_one_whatever_the_server_tells(serve: Serve, connect: Connect) -> None:
    server = serve(temper=True, info={"max_req_input_len": 5})
    engine = connect(server)
    assert not engine.facts.original_logprobs
    (generation,) = run(engine, ask(temperature=0.5, max_tokens=4))
    assert generation.logprobs == (-1.0, -1.0, -1.0), "the fourth would be more than the server can read"
    read = server.bodies[-1]
    assert read["input_ids"] == [1, 2, *b"hel"]
    assert read["sampling_params"]["max_new_tokens"] == 0
    run(engine, ask(temperature=1.0, max_tokens=3))
    assert len(server.generations) == 2
    assert server.bodies[-1] is server.generations[-1], "nothing is read twice where nothing was tempered"


def test_a_router_is_met_and_what_it_cannot_abort_comes_back_empty(serve: Serve, connect: Connect) -> None:
    engine = connect(serve("ok", "hang", router=True))
    assert run(engine, ask())[0].finish == "eos"
    (generation,) = run(engine, ask(deadline=time.monotonic() + 0.3))
    assert (generation.tokens, generation.finish) == ((), "deadline")


def test_it_serves_several_event_loops(serve: Serve, connect: Connect) -> None:
    engine = connect(serve())
    assert [run(engine, ask())[0].finish for _ in range(3)] == ["eos"] * 3


def test_a_server_that_is_not_there_is_named(serve: Serve, connect: Connect) -> None:
    server = serve()
    server.close()
    with pytest.raises(ConnectionError, match=rf"{server.url} does not answer"):
        connect(server)


def test_a_server_with_a_smaller_vocabulary_is_refused(serve: Serve, connect: Connect) -> None:
    with pytest.raises(ValueError, match="not a server of this model"):
        connect(serve(vocab_size=200))


def test_a_server_with_other_tokens_is_refused(serve: Serve, connect: Connect) -> None:
    class Shifted(ByteVocabulary):
        def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
            return super().decode([(i + 1) % 257 for i in ids])

    with pytest.raises(ValueError, match=r"serves toy, whose vocabulary is another one .* id 0 is"):
        connect(serve(), tokenizer=Shifted())

"""Each branch gets exactly one complete reply whatever the servers do, or fails with one sentence."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from decoding.core import Generation, GenerationRequest, OversizedRequest, SamplingParams
from reason.engines.http.errors import NoServer, RequestRejected
from reason.engines.sglang_client.engine import SGLangEngine
from tests.support.scripted_sglang_server import Act, ByteVocabulary, ScriptedSGLangServer

Serve = Callable[..., ScriptedSGLangServer]
Connect = Callable[..., SGLangEngine]


def request_for(
    prefix: tuple[int, ...] = (1, 2), *, group: str = "p", deadline: float | None = None, **params: Any
) -> Any:
    return GenerationRequest(
        prefix=prefix, params=SamplingParams(**params), seed=2**63 + 7, group=group, deadline=deadline
    )


def run(engine: SGLangEngine, *requests: GenerationRequest) -> list[Generation]:
    return asyncio.run(engine.generate(requests))


def test_request_body_and_generation(serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server)
    (generation,) = run(
        engine, request_for(temperature=0.5, top_p=0.9, stop=("zz",), stop_token_ids=(9,), max_tokens=7)
    )
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
    spent = generation.usage
    assert (spent.calls, spent.tokens, spent.prompt_tokens, spent.cached_tokens, spent.forwards) == (1, 6, 2, 1, 6)
    assert (engine.stats.tokens, engine.stats.cached_tokens, engine.stats.running, engine.stats.waiting) == (6, 1, 0, 0)


@pytest.mark.parametrize(
    ("params", "text", "finish"),
    [
        ({"stop": ("ll",)}, b"hell", "stop"),
        ({"stop": ("o",)}, b"hello", "stop"),
        ({"stop_token_ids": (ord("e"),)}, b"he", "stop"),
        ({"max_tokens": 2}, b"he", "length"),
    ],
)
def test_end_and_finish_reason_are_those_of_the_local_engine(
    serve: Serve, connect: Connect, params: dict[str, Any], text: bytes, finish: str
) -> None:
    (generation,) = run(connect(serve()), request_for(**params))
    assert (bytes(generation.tokens), generation.finish) == (text, finish)
    assert len(generation.logprobs) == generation.usage.tokens == len(text)


def test_full_queue_is_retried(serve: Serve, connect: Connect) -> None:
    server = serve("full", "full", "full", "full")
    engine = connect(server)
    (generation,) = run(engine, request_for())
    assert (generation.finish, len(server.generations), engine.stats.full, engine.stats.reissued) == ("eos", 5, 4, 0)


def test_max_in_flight_holds_further_requests_back(serve: Serve, connect: Connect) -> None:
    server = serve(*["hang"] * 3)
    engine = connect(server, max_in_flight=3)

    async def scenario() -> list[Generation]:
        pending = asyncio.gather(*(engine.generate([request_for()]) for _ in range(8)))
        while engine.stats.waiting < 5 or len(server.under_way) < 3:
            await asyncio.sleep(0.01)
        assert len(server.generations) == engine.stats.running == 3
        server.release()
        return [generation for (generation,) in await pending]

    assert len(asyncio.run(scenario())) == 8


@pytest.mark.parametrize("act", ["die", "cut", "crash_500"])
def test_lost_response_is_retried_at_another_server(serve: Serve, connect: Connect, act: Act) -> None:
    first, second = serve(act), serve()
    engine = connect(first, second)
    (generation,) = run(engine, request_for())
    assert (generation.finish, engine.stats.reissued) == ("eos", 1)
    assert (len(first.generations), len(second.generations)) == (1, 1)
    assert first.generations[0]["rid"] != second.generations[0]["rid"]


def test_hanging_server_gets_an_abort(serve: Serve, connect: Connect) -> None:
    first, second = serve("hang"), serve()
    engine = connect(first, second, request_timeout_s=2.0, token_timeout_s=1e-4)
    (generation,) = run(engine, request_for())
    assert generation.finish == "eos"
    engine.close()  # waits for the abort request
    assert first.aborted == [first.generations[0]["rid"]]


def test_lost_responses_end_at_max_retries(serve: Serve, connect: Connect) -> None:
    servers = [serve("die"), serve("die"), serve("die"), serve()]
    with pytest.raises(NoServer, match="3 replies to this request were lost"):
        run(connect(*servers), request_for())
    assert not servers[3].generations


def test_restarted_server_answers_all_waiting_requests(serve: Serve, connect: Connect) -> None:
    first = serve(*["hang"] * 4)
    engine, servers = connect(first), [first]

    async def scenario() -> list[Generation]:
        pending = asyncio.gather(*(engine.generate([request_for()]) for _ in range(4)))
        while len(first.under_way) < 4:
            await asyncio.sleep(0.01)
        first.close()
        while engine.stats.reissued < 4:
            await asyncio.sleep(0.01)
        servers.append(serve(port=first.port))
        return [generation for (generation,) in await pending]

    assert [generation.finish for generation in asyncio.run(scenario())] == ["eos"] * 4
    assert len(servers[1].generations) == 4


def test_unavailable_timeout_names_the_address(serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server, unavailable_timeout_s=0.3)
    server.close()
    with pytest.raises(NoServer, match=rf"{server.url}.*gave up after 0.3 s"):
        run(engine, request_for())


def test_router_without_workers_is_retried(serve: Serve, connect: Connect) -> None:
    server = serve("no_workers", "no_workers")
    assert run(connect(server), request_for())[0].finish == "eos"


@pytest.mark.parametrize("act", ["native_400", "openai_400"])
def test_rejection_message_of_every_error_shape(serve: Serve, connect: Connect, act: Act) -> None:
    server = serve(act)
    with pytest.raises(RequestRejected, match=r"/generate says 400: top_p must be in \(0, 1\]$"):
        run(connect(server), request_for())
    assert len(server.generations) == 1


def test_oversized_request_here_and_at_the_server(serve: Serve, connect: Connect) -> None:
    server = serve("too_long", info={"context_length": 64})
    engine = connect(server)
    with pytest.raises(OversizedRequest, match=r"2 prefix tokens \+ max_tokens=63 = 65 tokens exceed"):
        run(engine, request_for(max_tokens=63))
    assert not server.generations
    with pytest.raises(OversizedRequest, match="context length"):
        run(engine, request_for(max_tokens=9))


@pytest.mark.parametrize("wrong", [(257,), (1, -1, 2)])
def test_id_outside_the_vocabulary_is_never_sent(serve: Serve, connect: Connect, wrong: tuple[int, ...]) -> None:
    server = serve()
    with pytest.raises(ValueError, match="outside the model's vocabulary of 257"):
        run(connect(server), request_for(), request_for(wrong))
    assert not server.generations


def test_cancellation_aborts_requests(serve: Serve, connect: Connect) -> None:
    server = serve("hang", "hang")
    engine = connect(server)

    async def scenario() -> None:
        pending = asyncio.create_task(engine.generate([request_for(), request_for()]))
        while len(server.under_way) < 2:
            await asyncio.sleep(0.01)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending

    asyncio.run(scenario())
    engine.close()
    assert sorted(server.aborted) == sorted(body["rid"] for body in server.generations)
    assert (engine.stats.running, engine.stats.waiting, engine.stats.aborted) == (0, 0, 2)


def test_close_aborts_requests(serve: Serve, connect: Connect) -> None:
    server = serve("hang")
    engine = connect(server)

    async def scenario() -> None:
        pending = asyncio.create_task(engine.generate([request_for()]))
        while not server.under_way:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.close)
        with pytest.raises(asyncio.CancelledError):
            await pending

    asyncio.run(scenario())
    assert server.aborted == [server.generations[0]["rid"]]
    with pytest.raises(RuntimeError, match="closed"):
        run(engine, request_for())


def test_deadline_returns_the_tokens_so_far(serve: Serve, connect: Connect) -> None:
    server = serve("hang")
    (generation,) = run(connect(server), request_for(deadline=time.monotonic() + 0.3))
    assert (bytes(generation.tokens), generation.finish) == (b"hel", "deadline")


def test_deadline_ends_the_wait_for_a_full_server(serve: Serve, connect: Connect) -> None:
    server = serve(*["full"] * 99)
    (generation,) = run(connect(server), request_for(deadline=time.monotonic() + 0.3))
    assert (generation.tokens, generation.finish, generation.usage.prompt_tokens) == ((), "deadline", 2)


def test_passed_deadline_sends_nothing(serve: Serve, connect: Connect) -> None:
    server = serve()
    (generation,) = run(connect(server), request_for(deadline=time.monotonic() - 1))
    assert (generation.finish, server.generations) == ("deadline", [])


def test_problems_are_distributed_and_stay_with_their_server(serve: Serve, connect: Connect) -> None:
    servers = [serve(), serve()]
    engine = connect(*servers)

    async def scenario() -> None:
        for _ in range(3):
            await asyncio.gather(*(engine.generate([request_for(group=str(i)) for _ in range(2)]) for i in range(8)))

    asyncio.run(scenario())
    groups = [[body["sampling_params"]["custom_params"]["problem_id"] for body in s.generations] for s in servers]
    assert not set(groups[0]) & set(groups[1])
    assert sorted(groups[0] + groups[1]) == sorted(6 * [str(i) for i in range(8)])
    assert min(map(len, groups)) > 0


@pytest.mark.parametrize("temper", [False, True])
def test_likely_tokens_are_requested_and_returned_at_temperature_one(
    serve: Serve, connect: Connect, temper: bool
) -> None:
    server = serve(temper=temper)
    request = replace(request_for(temperature=0.5, max_tokens=4, stop=("el",)), num_top=3)
    (generation,) = run(connect(server), request)
    assert [body["top_logprobs_num"] for body in server.generations] == [3] * (1 + temper)
    assert bytes(generation.tokens) == b"hel"
    assert generation.top_logprobs is not None
    assert generation.entropies is not None
    expected = [-0.5, -1.5, -2.5] if temper else [-1.0, -3.0, np.nan]  # the server sends two of three
    np.testing.assert_array_equal(generation.top_logprobs, np.array([expected] * 3, dtype=np.float32))
    entropy = -sum(math.exp(value) * value for value in expected if value == value)
    np.testing.assert_allclose(generation.entropies, [entropy] * 3, rtol=1e-6)
    (plain,) = run(connect(server), request_for())
    assert plain.top_logprobs is plain.entropies is None


def test_logprobs_are_at_temperature_one_whatever_the_server_returns(serve: Serve, connect: Connect) -> None:
    server = serve(temper=True, info={"max_req_input_len": 5})
    engine = connect(server)
    assert not engine.capabilities.has_original_logprobs
    (generation,) = run(engine, request_for(temperature=0.5, max_tokens=4))
    assert generation.logprobs == (-1.0, -1.0, -1.0), "the fourth would be more than the server can read"
    read = server.bodies[-1]
    assert read["input_ids"] == [1, 2, *b"hel"]
    assert read["sampling_params"]["max_new_tokens"] == 0
    run(engine, request_for(temperature=1.0, max_tokens=3))
    assert len(server.generations) == 2
    assert server.bodies[-1] is server.generations[-1], "nothing is read twice where nothing was tempered"


def test_router_is_probed_and_a_late_request_behind_it_is_empty(serve: Serve, connect: Connect) -> None:
    engine = connect(serve("ok", "hang", router=True))
    assert run(engine, request_for())[0].finish == "eos"
    (generation,) = run(engine, request_for(deadline=time.monotonic() + 0.3))
    assert (generation.tokens, generation.finish) == ((), "deadline")


def test_generate_from_several_event_loops(serve: Serve, connect: Connect) -> None:
    engine = connect(serve())
    assert [run(engine, request_for())[0].finish for _ in range(3)] == ["eos"] * 3


def test_unreachable_server_is_named(serve: Serve, connect: Connect) -> None:
    server = serve()
    server.close()
    with pytest.raises(ConnectionError, match=rf"{server.url} does not answer"):
        connect(server)


def test_probe_refuses_a_smaller_vocabulary(serve: Serve, connect: Connect) -> None:
    with pytest.raises(ValueError, match="not a server of this model"):
        connect(serve(vocab_size=200))


def test_probe_refuses_other_tokens(serve: Serve, connect: Connect) -> None:
    class Shifted(ByteVocabulary):
        def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
            return super().decode([(i + 1) % 257 for i in ids])

    with pytest.raises(ValueError, match=r"serves toy, whose vocabulary is another one .* id 0 is"):
        connect(serve(), tokenizer=Shifted())

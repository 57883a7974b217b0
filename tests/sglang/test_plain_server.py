"""A real server writes what the engine in this process writes, and what it refuses is understood."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

import httpx2
import pytest
import torch

from decoding.core import GenerationRequest, OversizedRequest, SamplingParams
from reason.engines.http.errors import RequestRejected
from reason.engines.sglang_client.server import SGLangServer
from reason.engines.sglang_client.wire import build_generate_body, parse_generate_response
from reason.solver import Solver
from tests.support import sglang_solvers as solving
from tests.support.sglang_servers import TARGET, RealServer

T = TypeVar("T")


@pytest.fixture
def there(plain: RealServer) -> Iterator[Solver]:
    with solving.there([plain], "scorer=none", "search=self_consistency") as made:
        yield made


def talk(server: RealServer, work: Callable[[SGLangServer], Awaitable[T]]) -> T:
    """What comes of talking to a server without an engine in between, which would refuse much before it is sent."""

    async def story() -> T:
        async with httpx2.AsyncClient(timeout=120) as http:
            return await work(SGLangServer(server.url, http))

    return asyncio.run(story())


def body(prefix: tuple[int, ...], max_tokens: int, **more: Any) -> dict[str, Any]:
    request = GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=max_tokens), seed=0)
    made: dict[str, Any] = build_generate_body(request, "a-name", max_tokens)
    made["sampling_params"] |= more
    return made


@pytest.mark.parametrize(
    "params", [{}, {"max_tokens": 9}, {"stop": ("\n",)}, {"stop": ("=",)}, {"stop": (" 4", "mod")}]
)
def test_the_same_greedy_tokens_and_the_same_end(here: Solver, there: Solver, params: dict[str, Any]) -> None:
    sampling = SamplingParams(**({"max_tokens": 200, "temperature": 0.0} | params))
    for ours, theirs in zip(solving.write(here, sampling), solving.write(there, sampling), strict=True):
        assert (ours.tokens, ours.finish) == (theirs.tokens, theirs.finish)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_logprobs_are_the_models_own_at_any_temperature(there: Solver, temperature: float) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    generations = solving.write(there, SamplingParams(max_tokens=40, temperature=temperature), each=2)
    for generation, question in zip(generations, [q for q in solving.QUESTIONS for _ in range(2)], strict=True):
        prefix = there.prompt.encode(question)
        with torch.no_grad():
            logits = model(torch.tensor([[*prefix, *generation.tokens]])).logits[0, len(prefix) - 1 : -1]
        own = logits.log_softmax(-1)[range(len(generation.tokens)), list(generation.tokens)]
        assert generation.logprobs == pytest.approx(own.tolist(), abs=1e-3)


def test_the_same_search_tree_where_nothing_is_drawn(plain: RealServer) -> None:
    settings = ("search=beam_search", "search.n=4", "search.sampling.temperature=0.0")
    with solving.here(*settings) as ours, solving.there([plain], *settings) as theirs:
        for question in solving.QUESTIONS:
            one, other = (made.solve(question) for made in (ours, theirs))
            assert [node.step.tokens for node in one.tree.nodes] == [node.step.tokens for node in other.tree.nodes]
            assert [node.parent for node in one.tree.nodes] == [node.parent for node in other.tree.nodes]
            assert one.answer == other.answer


def test_siblings_find_their_prompt_in_the_cache(there: Solver) -> None:
    solving.write(there, SamplingParams(max_tokens=4))
    again = solving.write(there, SamplingParams(max_tokens=4))
    assert all(generation.usage.cached_tokens >= generation.usage.prompt_tokens - 1 for generation in again)


def test_a_full_queue_loses_nobody(there: Solver) -> None:
    """Four run and four wait there; the others are sent again until there is room."""
    generations = solving.write(there, SamplingParams(max_tokens=60), each=16)
    assert {generation.finish for generation in generations} <= {"eos", "length"}
    stats = solving.remote(there).stats
    assert stats.full > 0
    assert (stats.running, stats.waiting, stats.reissued) == (0, 0, 0)


def test_an_aborted_request_comes_back_with_what_it_has(plain: RealServer) -> None:
    async def story(server: SGLangServer) -> Any:
        asked = asyncio.create_task(server.generate(body((5, 6, 7), 2000, ignore_eos=True)))
        while not cast(Any, await server.request_json("GET", "/v1/loads"))["loads"][0]["num_running_reqs"]:
            await asyncio.sleep(0.01)
        await server.abort_request("a-name")
        return parse_generate_response(await asked)

    reply = talk(plain, story)
    assert reply.reason == "abort"
    assert len(reply.tokens) < 2000


def test_too_long_a_prompt_is_an_oversized_request(plain: RealServer) -> None:
    for made in (body((5,) * 2100, 1), body((5,) * 2000, 100)):
        with pytest.raises(OversizedRequest, match="context length"):
            talk(plain, partial(SGLangServer.generate, body=made))


def test_a_wrong_setting_is_refused_with_its_sentence(plain: RealServer) -> None:
    with pytest.raises(RequestRejected, match=r"says 400: .*top_p"):
        talk(plain, lambda server: server.generate(body((5,), 1, top_p=2)))
    with pytest.raises(RequestRejected, match="unknown field `tempreature`"):
        talk(plain, lambda server: server.generate(body((5,), 1, tempreature=2)))


def test_an_id_outside_the_vocabulary_is_not_sent(there: Solver, plain: RealServer) -> None:
    request = GenerationRequest(prefix=(5, 576), params=SamplingParams(max_tokens=1), seed=0)
    with pytest.raises(ValueError, match="outside the model's vocabulary of 576"):
        asyncio.run(solving.remote(there).generate([request]))
    assert httpx2.get(f"{plain.url}/health", timeout=30).is_success

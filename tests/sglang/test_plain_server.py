"""A real server without speculation generates the tokens of the engine in this process; its errors have classes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

import httpx2
import pytest
import torch

from decoding.core import GenerationRequest, OversizedRequest, SamplingParams
from reason.engines.http.bounded_http import BoundedHttp
from reason.engines.http.errors import RequestRejected
from reason.engines.http.reply import ReplyLimits
from reason.engines.sglang_client.server import SGLangServer
from reason.engines.sglang_client.wire import build_generate_body, parse_generate_response
from reason.solver import Solver
from tests.support.sglang_servers import TARGET, RealServer
from tests.support.sglang_solvers import QUESTIONS, generate_all, load_local, load_remote, sglang_engine

T = TypeVar("T")


@pytest.fixture
def remote_solver(plain_server: RealServer) -> Iterator[Solver]:
    with load_remote([plain_server], "scorer=none", "search=self_consistency") as solver:
        yield solver


def run_with_server(server: RealServer, work: Callable[[SGLangServer], Awaitable[T]]) -> T:
    """Returns the result of `work` without an engine, which would reject many requests before they are sent."""

    async def run_work() -> T:
        http = BoundedHttp(ReplyLimits(total_s=120, idle_s=120, max_bytes=2**24))
        try:
            return await work(SGLangServer(server.url, http))
        finally:
            await http.aclose()

    return asyncio.run(run_work())


def make_body(prefix: tuple[int, ...], max_tokens: int, **more: Any) -> dict[str, Any]:
    request = GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=max_tokens), seed=0)
    body: dict[str, Any] = build_generate_body(request, "a-name", max_tokens)
    body["sampling_params"] |= more
    return body


@pytest.mark.parametrize(
    "params", [{}, {"max_tokens": 9}, {"stop": ("\n",)}, {"stop": ("=",)}, {"stop": (" 4", "mod")}]
)
def test_greedy_tokens_and_finish_reason_equal_those_of_the_local_engine(
    local_solver: Solver, remote_solver: Solver, params: dict[str, Any]
) -> None:
    sampling = SamplingParams(**({"max_tokens": 200, "temperature": 0.0} | params))
    for ours, theirs in zip(generate_all(local_solver, sampling), generate_all(remote_solver, sampling), strict=True):
        assert (ours.tokens, ours.finish) == (theirs.tokens, theirs.finish)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_logprobs_are_raw_at_any_temperature(remote_solver: Solver, temperature: float) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    generations = generate_all(remote_solver, SamplingParams(max_tokens=40, temperature=temperature), each=2)
    for generation, question in zip(generations, [q for q in QUESTIONS for _ in range(2)], strict=True):
        prefix = remote_solver.prompt.encode(question)
        with torch.no_grad():
            logits = model(torch.tensor([[*prefix, *generation.tokens]])).logits[0, len(prefix) - 1 : -1]
        expected = logits.log_softmax(-1)[range(len(generation.tokens)), list(generation.tokens)]
        assert generation.logprobs == pytest.approx(expected.tolist(), abs=1e-3)


def test_search_tree_at_temperature_zero_equals_that_of_the_local_engine(plain_server: RealServer) -> None:
    settings = ("search=beam_search", "search.n=4", "search.sampling.temperature=0.0")
    with load_local(*settings) as ours, load_remote([plain_server], *settings) as theirs:
        for question in QUESTIONS:
            one, other = (solver.solve(question) for solver in (ours, theirs))
            assert [node.step.tokens for node in one.tree.nodes] == [node.step.tokens for node in other.tree.nodes]
            assert [node.parent for node in one.tree.nodes] == [node.parent for node in other.tree.nodes]
            assert one.answer == other.answer


def test_siblings_read_their_prompt_from_the_prefix_cache(remote_solver: Solver) -> None:
    generate_all(remote_solver, SamplingParams(max_tokens=4))
    again = generate_all(remote_solver, SamplingParams(max_tokens=4))
    assert all(generation.usage.cached_tokens >= generation.usage.prompt_tokens - 1 for generation in again)


def test_requests_beyond_a_full_queue_are_sent_again(remote_solver: Solver) -> None:
    """The server runs four and queues four."""
    generations = generate_all(remote_solver, SamplingParams(max_tokens=60), each=16)
    assert {generation.finish for generation in generations} <= {"eos", "length"}
    stats = sglang_engine(remote_solver).stats
    assert stats.full > 0
    assert (stats.running, stats.waiting, stats.reissued) == (0, 0, 0)


def test_an_aborted_request_returns_its_tokens_so_far(plain_server: RealServer) -> None:
    async def abort_running(server: SGLangServer) -> Any:
        generating = asyncio.create_task(server.generate(make_body((5, 6, 7), 2000, ignore_eos=True)))
        while not cast(Any, await server.request_json("GET", "/v1/loads"))["loads"][0]["num_running_reqs"]:
            await asyncio.sleep(0.01)
        await server.abort_request("a-name")
        return parse_generate_response(await generating, vocab_size=10**6, max_tokens=2000, prefix_length=3)

    reply = run_with_server(plain_server, abort_running)
    assert reply.reason == "abort"
    assert len(reply.tokens) < 2000


def test_a_prompt_beyond_the_context_length_is_an_oversized_request(plain_server: RealServer) -> None:
    for body in (make_body((5,) * 2100, 1), make_body((5,) * 2000, 100)):
        with pytest.raises(OversizedRequest, match="context length"):
            run_with_server(plain_server, partial(SGLangServer.generate, body=body))


def test_an_invalid_sampling_parameter_is_rejected_with_the_servers_message(plain_server: RealServer) -> None:
    with pytest.raises(RequestRejected, match=r"says 400: .*top_p"):
        run_with_server(plain_server, lambda server: server.generate(make_body((5,), 1, top_p=2)))
    with pytest.raises(RequestRejected, match="unknown field `tempreature`"):
        run_with_server(plain_server, lambda server: server.generate(make_body((5,), 1, tempreature=2)))


def test_an_id_outside_the_vocabulary_is_not_sent(remote_solver: Solver, plain_server: RealServer) -> None:
    request = GenerationRequest(prefix=(5, 576), params=SamplingParams(max_tokens=1), seed=0)
    with pytest.raises(ValueError, match="outside the model's vocabulary of 576"):
        asyncio.run(sglang_engine(remote_solver).generate([request]))
    assert httpx2.get(f"{plain_server.url}/health", timeout=30).is_success

"""Our speculation inside SGLang changes nothing of what is written, whatever else is in the batch or goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from scipy.stats import chisquare

from decoding.core import GenerationRequest, SamplingParams, Usage
from decoding.sglang_plugin.adaptive_nodes import list_sizes
from reason.bench.servers import flush_cache
from reason.solver import Solver
from tests.support.sglang_servers import TARGET, RealServer, SharedServers
from tests.support.sglang_solvers import QUESTIONS, generate_all, load_local, load_remote, sglang_engine

Pair = tuple[RealServer, RealServer]


@pytest.fixture
def remote_solver(speculating_servers: Pair) -> Iterator[Solver]:
    with load_remote(speculating_servers[:1], "scorer=none", "search=self_consistency") as solver:
        yield solver


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=120, temperature=0.0),
        SamplingParams(max_tokens=120),
        SamplingParams(max_tokens=120, temperature=0.6, top_p=0.9, top_k=20),
        SamplingParams(max_tokens=120, stop=("\n",)),
    ],
    ids=["greedy", "temperature 1", "filtered", "stopped"],
)
def test_tokens_of_a_seed_equal_those_of_plain_local_decoding(
    local_solver: Solver, remote_solver: Solver, params: SamplingParams
) -> None:
    ours, theirs = (generate_all(solver, params, each=6) for solver in (local_solver, remote_solver))
    assert [generation.tokens for generation in ours] == [generation.tokens for generation in theirs]
    assert [generation.finish for generation in ours] == [generation.finish for generation in theirs]
    assert sum((generation.usage for generation in theirs), Usage()).accepted > 0, "no draft was accepted"


def test_a_batch_of_mixed_parameters_equals_local_decoding(local_solver: Solver, remote_solver: Solver) -> None:
    params = [
        SamplingParams(max_tokens=80, temperature=temperature, top_p=top_p)
        for temperature in (0.0, 0.7, 1.0)
        for top_p in (0.8, 1.0)
    ]
    requests = [
        GenerationRequest(prefix=local_solver.prompt.encode(question), params=one, seed=seed, group=question)
        for question in QUESTIONS
        for seed, one in enumerate(params)
    ]

    async def generate_tokens(solver: Solver) -> list[tuple[int, ...]]:
        return [generation.tokens for generation in await solver.engine.generate(requests)]

    assert asyncio.run(generate_tokens(local_solver)) == asyncio.run(generate_tokens(remote_solver))


def test_rounds_of_an_adaptive_server_have_several_sizes_and_the_same_tokens(
    local_solver: Solver, speculating_servers: Pair
) -> None:
    adaptive, params = speculating_servers[1], SamplingParams(max_tokens=100)
    flush_cache(adaptive.url, adaptive.log)
    with load_remote([adaptive], "scorer=none", "search=self_consistency") as remote_solver:
        theirs = generate_all(remote_solver, params, each=16)
    rounds = flush_cache(adaptive.url, adaptive.log)
    assert [generation.tokens for generation in generate_all(local_solver, params, each=16)] == [
        generation.tokens for generation in theirs
    ]
    assert set(rounds) <= {0, *list_sizes(11)}
    assert rounds[0] > 0, "no round was plain"
    assert len(rounds) > 1, "no round had drafts"


def test_retracted_requests_generate_the_same_tokens(local_solver: Solver, speculating_servers: Pair) -> None:
    params = SamplingParams(max_tokens=100)
    with load_remote(speculating_servers[1:], "scorer=none", "search=self_consistency") as remote_solver:
        theirs = generate_all(remote_solver, params, each=16)
    ours = generate_all(local_solver, params, each=16)
    assert [generation.tokens for generation in ours] == [generation.tokens for generation in theirs]
    assert "Retract" in speculating_servers[1].log.read_text(errors="replace"), "no request was retracted"


@pytest.mark.parametrize("rule", ["coupled", "recursive_rejection"])
def test_tokens_of_many_seeds_have_the_models_distribution(shared_servers: SharedServers, rule: str) -> None:
    """The pairs of the first two tokens, 1,200 of them, against the model's own probabilities."""
    from transformers import AutoModelForCausalLM

    server, count = shared_servers.speculating[0] if rule == "coupled" else shared_servers.recursive, 1200
    with load_remote([server], "scorer=none", "search=self_consistency") as remote_solver:
        prefix = remote_solver.prompt.encode(QUESTIONS[0])
        requests = [
            GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=4), seed=seed, group="one")
            for seed in range(count)
        ]
        generations = asyncio.run(sglang_engine(remote_solver).generate(requests))
    assert sum((generation.usage for generation in generations), Usage()).accepted > 0, "no draft was accepted"
    num_pairs = Counter(generation.tokens[:2] for generation in generations)
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    with torch.no_grad():
        first = model(torch.tensor([prefix])).logits[0, -1].softmax(-1).double()
        likely = first.topk(12).indices.tolist()
        second = model(torch.tensor([[*prefix, token] for token in likely])).logits[:, -1].softmax(-1).double()
    expected = {
        (token, follower): count * float(first[token] * second[i, follower])
        for i, token in enumerate(likely)
        for follower in range(second.shape[1])
    }
    often = [pair for pair, times in expected.items() if times >= 8]
    observed = [num_pairs[pair] for pair in often]
    expected_counts = [expected[pair] for pair in often]
    rest = count - sum(expected_counts)
    if rest >= 5:
        observed, expected_counts = [*observed, count - sum(observed)], [*expected_counts, rest]
    assert len(expected_counts) > 3, "the model is too sure here for the test to mean anything"
    scaled_counts = [times * sum(observed) / sum(expected_counts) for times in expected_counts]
    assert chisquare(observed, scaled_counts).pvalue > 1e-4


def test_search_tree_and_answer_equal_those_of_the_local_engine(speculating_servers: Pair) -> None:
    settings = ("search=rebase", "search.n=8")
    with load_local(*settings) as ours, load_remote(speculating_servers[:1], *settings) as theirs:
        for question in QUESTIONS:
            one, other = (solver.solve(question) for solver in (ours, theirs))
            assert [node.step.tokens for node in one.tree.nodes] == [node.step.tokens for node in other.tree.nodes]
            assert [node.parent for node in one.tree.nodes] == [node.parent for node in other.tree.nodes]
            assert one.answer == other.answer


def test_a_server_killed_during_searches_changes_no_tree_and_may_restart(speculating_servers: Pair) -> None:
    settings = ("search=beam_search", "search.n=8", "concurrency=4")
    questions = [f"x0 = {i}. Each next term is 5 times the one before plus 8, modulo 19. Find x3." for i in range(1, 7)]
    with load_local(*settings) as ours:
        expected = {problem.question: solution for problem, solution in ours.solve_many(questions)}
    killed_server = speculating_servers[1]
    with load_remote(speculating_servers, *settings) as theirs:
        engine = sglang_engine(theirs)

        def kill() -> None:
            while engine.stats.tokens < 150:
                threading.Event().wait(0.01)
            killed_server.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        solutions = {problem.question: solution for problem, solution in theirs.solve_many(questions)}
        killer.join()
        assert engine.stats.reissued > 0, "it was killed too late to be noticed"
        for question in questions:
            one, other = expected[question], solutions[question]
            assert not isinstance(one, Exception)
            assert not isinstance(other, Exception), other
            assert [node.step.tokens for node in one.tree.nodes] == [node.step.tokens for node in other.tree.nodes]
            assert one.answer == other.answer
        killed_server.start()
        killed_server.wait()
        new = [f"What is the remainder when {i}^2 is divided by 5?" for i in range(4, 10)]  # the old have moved
        assert not [outcome for _, outcome in theirs.solve_many(new) if isinstance(outcome, Exception)]
    sent = killed_server.log.read_text(errors="replace").rpartition("fired up")[2].count("POST /generate")
    assert sent > 0, "the restarted server got no request"

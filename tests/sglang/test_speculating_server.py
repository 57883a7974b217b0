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
from reason.solver import Solver
from tests.sglang.conftest import Fleet
from tests.support import sglang_solvers as solving
from tests.support.sglang_servers import TARGET, RealServer

Pair = tuple[RealServer, RealServer]


@pytest.fixture
def there(guessing: Pair) -> Iterator[Solver]:
    with solving.there(guessing[:1], "scorer=none", "search=self_consistency") as made:
        yield made


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
def test_the_same_seed_gives_the_tokens_of_plain_decoding_in_this_process(
    here: Solver, there: Solver, params: SamplingParams
) -> None:
    ours, theirs = (solving.write(made, params, each=6) for made in (here, there))
    assert [generation.tokens for generation in ours] == [generation.tokens for generation in theirs]
    assert [generation.finish for generation in ours] == [generation.finish for generation in theirs]
    assert sum((generation.usage for generation in theirs), Usage()).accepted > 0, "nothing was guessed"


def test_a_mixed_batch_writes_what_each_would_alone(here: Solver, there: Solver) -> None:
    params = [
        SamplingParams(max_tokens=80, temperature=temperature, top_p=top_p)
        for temperature in (0.0, 0.7, 1.0)
        for top_p in (0.8, 1.0)
    ]
    requests = [
        GenerationRequest(prefix=here.prompt.encode(question), params=one, seed=seed, group=question)
        for question in solving.QUESTIONS
        for seed, one in enumerate(params)
    ]

    async def written(made: Solver) -> list[tuple[int, ...]]:
        return [generation.tokens for generation in await made.engine.generate(requests)]

    assert asyncio.run(written(here)) == asyncio.run(written(there))


def test_branches_that_are_put_back_for_want_of_memory_write_the_same(here: Solver, guessing: Pair) -> None:
    params = SamplingParams(max_tokens=100)
    with solving.there(guessing[1:], "scorer=none", "search=self_consistency") as there:
        theirs = solving.write(there, params, each=16)
    ours = solving.write(here, params, each=16)
    assert [generation.tokens for generation in ours] == [generation.tokens for generation in theirs]
    assert "Retract" in guessing[1].log.read_text(errors="replace"), "there was memory enough"


@pytest.mark.parametrize("rule", ["coupled", "recursive_rejection"])
def test_what_many_seeds_write_is_distributed_as_the_model_has_it(fleet: Fleet, rule: str) -> None:
    """The pairs of the first two tokens, 1,200 of them, against the model's own probabilities."""
    from transformers import AutoModelForCausalLM

    server, count = fleet.guessing[0] if rule == "coupled" else fleet.rejecting, 1200
    with solving.there([server], "scorer=none", "search=self_consistency") as there:
        prefix = there.prompt.encode(solving.QUESTIONS[0])
        requests = [
            GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=4), seed=seed, group="one")
            for seed in range(count)
        ]
        generations = asyncio.run(solving.remote(there).generate(requests))
    assert sum((generation.usage for generation in generations), Usage()).accepted > 0, "nothing was guessed"
    seen = Counter(generation.tokens[:2] for generation in generations)
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
    observed = [seen[pair] for pair in often]
    wanted = [expected[pair] for pair in often]
    rest = count - sum(wanted)
    if rest >= 5:
        observed, wanted = [*observed, count - sum(observed)], [*wanted, rest]
    assert len(wanted) > 3, "the model is too sure here for the test to mean anything"
    scaled = [times * sum(observed) / sum(wanted) for times in wanted]
    assert chisquare(observed, scaled).pvalue > 1e-4


def test_the_same_search_tree_and_answer_as_in_this_process(guessing: Pair) -> None:
    settings = ("search=rebase", "search.n=8")
    with solving.here(*settings) as ours, solving.there(guessing[:1], *settings) as theirs:
        for question in solving.QUESTIONS:
            one, other = (made.solve(question) for made in (ours, theirs))
            assert [node.step.tokens for node in one.tree.nodes] == [node.step.tokens for node in other.tree.nodes]
            assert [node.parent for node in one.tree.nodes] == [node.parent for node in other.tree.nodes]
            assert one.answer == other.answer


def test_a_server_killed_in_the_middle_of_searches_changes_no_tree_and_may_come_back(guessing: Pair) -> None:
    settings = ("search=beam_search", "search.n=8", "concurrency=4")
    questions = [f"x0 = {i}. Each next term is 5 times the one before plus 8, modulo 19. Find x3." for i in range(1, 7)]
    with solving.here(*settings) as ours:
        expected = {problem.question: solution for problem, solution in ours.solve_many(questions)}
    victim = guessing[1]
    with solving.there(guessing, *settings) as theirs:
        engine = solving.remote(theirs)

        def kill() -> None:
            while engine.stats.tokens < 150:
                threading.Event().wait(0.01)
            victim.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        found = {problem.question: solution for problem, solution in theirs.solve_many(questions)}
        killer.join()
        assert engine.stats.reissued > 0, "it was killed too late to be noticed"
        for question in questions:
            one, other = expected[question], found[question]
            assert not isinstance(one, Exception)
            assert not isinstance(other, Exception), other
            assert [node.step.tokens for node in one.tree.nodes] == [node.step.tokens for node in other.tree.nodes]
            assert one.answer == other.answer
        victim.start()
        victim.wait()
        new = [f"What is the remainder when {i}^2 is divided by 5?" for i in range(4, 10)]  # the old have moved
        assert not [outcome for _, outcome in theirs.solve_many(new) if isinstance(outcome, Exception)]
    sent = victim.log.read_text(errors="replace").rpartition("fired up")[2].count("POST /generate")
    assert sent > 0, "nobody asked the server that came back"

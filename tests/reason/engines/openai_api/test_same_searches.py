"""A greedy search over a server of the bundled model has the texts of the local engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import reason
from reason.models.checkpoint import find_model, load_tokenizer
from reason.problem import Solution
from reason.solver import Solver
from tests.support.completions_server import CompletionsServer

QUESTIONS = (
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "What is the remainder when 7^2 is divided by 5?",
)
GREEDY = "search.sampling.temperature=0"
SEARCHES = {
    "self_consistency": ("search=self_consistency", "search.n=2", "scorer=none"),
    "best_of_n": ("search=best_of_n", "search.n=2", "scorer=prm"),
    "beam_search": ("search=beam_search", "search.n=4", "search.beam_width=2", "scorer=prm"),
}


@pytest.fixture(scope="module")
def here() -> Iterator[Solver]:
    with reason.load("speculation=off", "engine.kv_mib=256", "search=self_consistency", "scorer=none") as solver:
        yield solver


@pytest.fixture(scope="module", params=[True, False], ids=["says what ended", "streams"])
def server(request: pytest.FixtureRequest, here: Solver) -> Iterator[CompletionsServer]:
    tokenizer = load_tokenizer(find_model("bundled:target").source)
    started = CompletionsServer(here, tokenizer, says_ended=request.param)
    yield started
    started.close()


def there(server: CompletionsServer, *settings: str) -> Solver:
    return reason.load("engine=openai", f"engine.urls=[{server.url}]", "engine.model=bundled", *settings)


def texts(solution: Solution) -> list[tuple[int, str, float | None, Any]]:
    return [
        (node.parent, node.step.text, None if node.score is None else round(node.score, 4), node.finish)
        for node in solution.tree.nodes
    ]


@pytest.mark.parametrize("search", SEARCHES)
def test_greedy_search_trees_equal_those_of_the_local_engine(server: CompletionsServer, search: str) -> None:
    settings = [*SEARCHES[search], GREEDY]
    with reason.load("speculation=off", "engine.kv_mib=256", *settings) as ours:
        local = [ours.solve(question) for question in QUESTIONS]
    with there(server, "model=bundled", *settings) as theirs:
        remote = [theirs.solve(question) for question in QUESTIONS]
    for one, other in zip(local, remote, strict=True):
        assert texts(one) == texts(other)
        assert (one.answer, one.votes) == (other.answer, other.votes)
        assert one.result.usage.tokens == other.result.usage.tokens


def test_likelihood_scores_equal_those_of_the_local_engine(server: CompletionsServer) -> None:
    settings = ["search=best_of_n", "search.n=2", "scorer=likelihood", GREEDY]
    with reason.load("speculation=off", "engine.kv_mib=256", *settings) as ours:
        local = ours.solve(QUESTIONS[1])
    with there(server, "model=bundled", "engine.logprobs=true", *settings) as theirs:
        remote = theirs.solve(QUESTIONS[1])
    assert remote.score == pytest.approx(local.score, abs=1e-3)


def test_confidences_equal_those_of_the_local_engine(server: CompletionsServer) -> None:
    settings = ["search=best_of_n", "search.n=2", "scorer=confidence", GREEDY]
    with reason.load("speculation=off", "engine.kv_mib=256", *settings) as ours:
        local = ours.solve(QUESTIONS[1])
    with there(server, "model=bundled", "engine.logprobs=true", *settings) as theirs:
        remote = theirs.solve(QUESTIONS[1])
    assert local.score is not None
    assert remote.score == pytest.approx(local.score, rel=1e-4)


def test_thoughts_are_probed_where_they_turn_as_with_the_local_engine(server: CompletionsServer) -> None:
    """The model writes no thoughts: what it writes is taken for one."""
    places = ["early_exit=converged", "early_exit.at=turns", "early_exit.every=3", "early_exit.markers=[Next,The]"]
    settings = ["thinking@model.thinking=r1", *places, "search=self_consistency", "search.n=1", "scorer=none", GREEDY]
    with reason.load("speculation=off", "engine.kv_mib=256", *settings) as ours:
        local = ours.solve(QUESTIONS[0])
    with there(server, "model=bundled", *settings) as theirs:
        remote = theirs.solve(QUESTIONS[0])
    assert texts(remote) == texts(local)
    assert remote.usage.probes == local.usage.probes > 0


def test_search_needs_no_file_of_the_model(server: CompletionsServer) -> None:
    """The budget counts the server's tokens, although the tree counts bytes."""
    raw = "model.prompt.raw='Question: {question}\\nSolution:\\n'"
    settings = ["search=self_consistency", "search.n=4", "search.sampling.max_tokens=100", "budget.tokens=200"]
    with there(server, raw, *settings) as theirs:
        solution = theirs.solve(QUESTIONS[1])
    solution.tree.assert_invariants()
    assert solution.answer is not None
    length = sum(len(node.step.tokens) for node in solution.tree.nodes)
    assert 0 < solution.result.usage.tokens <= 200 < length


def test_small_and_target_model_may_run_on_two_servers(server: CompletionsServer) -> None:
    draft = ["engine@draft=openai", f"draft.urls=[{server.url}]", "draft.model=bundled"]
    settings = ["model=bundled", "router=draft_only", "search=self_consistency", "search.n=2", "scorer=none", GREEDY]
    with there(server, *draft, *settings) as routed, there(server, *settings[:1], *settings[2:]) as alone:
        remote, local = routed.solve(QUESTIONS[1]), alone.solve(QUESTIONS[1])
    assert remote.text == local.text
    assert {node.step.model for node in remote.tree.nodes} == {"draft"}

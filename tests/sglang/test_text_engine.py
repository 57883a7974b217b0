"""`engine=openai` over the same real servers: text in, text out, and the trees of the engine in this process."""

from __future__ import annotations

import httpx2
import pytest

import reason
from reason.problem import Solution
from reason.solver import Solver
from tests.support.sglang_servers import RealServer
from tests.support.sglang_solvers import QUESTIONS

SEARCHES = {
    "self_consistency": ("search=self_consistency", "search.n=2", "scorer=none"),
    "beam_search": ("search=beam_search", "search.n=4", "search.beam_width=2", "scorer=prm"),
    "likelihood": ("search=best_of_n", "search.n=2", "scorer=likelihood"),
}


def load_over(server: RealServer, *settings: str) -> Solver:
    name = httpx2.get(f"{server.url}/v1/models").json()["data"][0]["id"]
    return reason.load(
        "engine=openai", f"engine.urls=[{server.url}/v1]", f"engine.model='{name}'", "model=bundled", *settings
    )


def node_texts(solution: Solution) -> list[tuple[int, str, str | None]]:
    return [(node.parent, node.step.text, node.finish) for node in solution.tree.nodes]


@pytest.mark.parametrize("search", SEARCHES)
def test_trees_equal_those_of_the_local_engine(plain_server: RealServer, search: str) -> None:
    settings = [*SEARCHES[search], "search.sampling.temperature=0"]
    with reason.load("speculation=off", "engine.device=cpu", "engine.kv_mib=256", *settings) as ours:
        expected = [ours.solve(question) for question in QUESTIONS]
    more = ["engine.logprobs=true"] if search == "likelihood" else []
    with load_over(plain_server, *settings, *more) as theirs:
        solutions = [theirs.solve(question) for question in QUESTIONS]
    for one, other in zip(expected, solutions, strict=True):
        assert node_texts(one) == node_texts(other)
        assert one.answer == other.answer
        assert one.score == pytest.approx(other.score, abs=1e-3)


def test_branches_beyond_a_full_queue_are_sent_again(plain_server: RealServer) -> None:
    """It has room for eight; the others are told to come back, and do."""
    with load_over(plain_server, "search=self_consistency", "search.n=24", "scorer=none") as theirs:
        solution = theirs.solve(QUESTIONS[0])
    assert len(solution.result.candidates) == 24

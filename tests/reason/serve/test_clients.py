"""Common clients complete their conversations; the checks are those of scripts/dev/check_clients.py."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

import reason
from reason.serve.presets import load_presets
from reason.serve.service import SearchService
from search.strategy import ScoredPaths, StepScorer
from search.tree import Step
from tests.support.paths import SCRIPTS
from tests.support.toy_server import chat_body, running_server, serve_settings


def script() -> Any:
    file = SCRIPTS / "dev" / "check_clients.py"
    sys.path.append(str(file.parent))  # as for a script that is started: it imports its neighbour
    spec = importlib.util.spec_from_file_location("check_clients", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLIENTS = script()


@pytest.mark.parametrize("name", CLIENTS.CHECKS)
def test_client_completes_its_conversation(
    name: str, bundled: tuple[str, SearchService], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, check = CLIENTS.CHECKS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; pip install 'reason-search[clients]'")
    for variable, value in CLIENTS.ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    url, service = bundled
    assert check(url)
    assert service.solver is not None
    service.solver.assert_invariants()


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    """A server of ours in front of the scripted model of the script."""
    with CLIENTS.start_scripted_model() as settings:
        service = SearchService(serve_settings(), load_presets(settings, [CLIENTS.TOOL_MODEL]))
        with running_server(service) as url:
            yield url


@pytest.mark.parametrize("name", CLIENTS.TOOL_CHECKS)
def test_agent_completes_tool_calls_and_structured_answers(
    name: str, scripted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, check = CLIENTS.TOOL_CHECKS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; pip install 'reason-search[clients]'")
    for variable, value in CLIENTS.ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    assert check(scripted)


def test_answer_equals_that_of_solve_with_the_same_settings(bundled: tuple[str, SearchService]) -> None:
    messages = [{"role": "user", "content": CLIENTS.QUESTION}]
    body = chat_body(messages=messages, seed=3, n=4, search={"agg_strategy": "prod"}, max_tokens=150)
    reply = httpx.post(f"{bundled[0]}/v1/chat/completions", json=body, timeout=60).json()
    settings = ["search.n=4", "search.agg_strategy=prod", "search.sampling.max_tokens=150", "seed=3"]
    with reason.load("search=best_of_n", "speculation=off", *settings) as solver:
        solution = solver.solve(CLIENTS.QUESTION)
    assert reply["choices"][0]["message"]["content"] == solution.text
    assert reply["search"]["answer"] == solution.answer
    assert reply["usage"]["completion_tokens"] == solution.usage.tokens
    tree = httpx.get(f"{reply['search']['tree']}.json", timeout=60).json()
    assert [node["tokens"] for node in tree["nodes"]] == [list(node.step.tokens) for node in solution.tree.nodes]


class SlowScorer:
    """Waits before it scores, so that no machine is fast enough for a search of two steps."""

    def __init__(self, scorer: StepScorer | None, wait_s: float) -> None:
        assert scorer is not None
        self._scorer, self._wait_s = scorer, wait_s

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        await asyncio.sleep(self._wait_s)
        return await self._scorer.score(paths)


def test_search_at_its_time_limit_returns_its_candidates(
    bundled: tuple[str, SearchService], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, service = bundled
    scorer = service.require_solver().scorer
    bind = scorer.bind
    monkeypatch.setattr(scorer, "bind", lambda *problem: SlowScorer(bind(*problem), wait_s=0.2))
    body = chat_body(model="beam-16", timeout=0.3, search={"n": 64, "beam_width": 1})
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    if response.status_code == 200:
        assert response.json()["search"]["stopped"] == "budget"
    else:
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-5},
    {"temperature": 100},
    {"top_p": 1e-300},
    {"search": {"sampling": {"top_k": 2**31 - 1, "min_p": 1.0}}},
    {"search": {"sampling": {"stop_token_ids": [2**31 - 1]}}},
    {"seed": -(2**63), "max_tokens": 10**6},
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_extreme_sampling_settings_do_not_break_the_shared_engine(
    bundled: tuple[str, SearchService], extreme: dict[str, Any]
) -> None:
    body = chat_body() | {"max_tokens": 20} | extreme
    response = httpx.post(f"{bundled[0]}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] > 0

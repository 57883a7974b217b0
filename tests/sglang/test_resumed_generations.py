"""A worker of `serve_models` is killed in the middle of streams, starts again, and ends in order: no token is lost.

The streams are real ones of SGLang; tests/reason/engines has the same with scripted servers, which can do worse.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Thread

import pytest

import reason
from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.engines.sglang_client.engine import SGLangEngine
from reason.solver import Solver
from tests.support.server_scripts import child_pids, running_members, start_script
from tests.support.sglang_servers import IS_INSTALLED, NOT_INSTALLED, PATIENCE_S, VENV
from tests.support.sglang_solvers import QUESTIONS, sglang_engine

# At this temperature an end of the text is as rare as any other token, so that texts are long.
LONG = SamplingParams(max_tokens=900, temperature=20.0)
KILLED_SEEDS, DRAINED_SEEDS = (100, 101, 103, 107), (105, 201, 203, 205)  # of texts that are long
BEFORE = 200  # tokens of all streams at which something happens

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason=NOT_INSTALLED)


@dataclass
class Script:
    """A running script, with its lines as they come."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str]

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Returns the first match in the lines that have not been read."""
        until, lines = time.monotonic() + PATIENCE_S, list[str]()
        while True:
            lines.append(self.lines.get(timeout=max(0.0, until - time.monotonic())))
            if (match := re.search(pattern, lines[-1])) is not None:
                return match


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """One worker, which may be started again once."""
    settings = [
        *(f"serve_models.python={VENV}", "serve_models.packages=cpu_stand_ins", "serve_models.servers=[target]"),
        *("target.speculation=REASON", "target.port=0", "hydra.run.dir=logs", "serve_models.restarts=1"),
    ]
    process = start_script(tmp_path_factory.mktemp("served"), "serve_models", *settings)
    lines: queue.Queue[str] = queue.Queue()

    def read_lines() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)

    reader = Thread(target=read_lines)
    reader.start()
    try:
        yield Script(process, lines)
    finally:
        for _ in range(2):  # the second one does not wait for requests
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        reader.join()


@pytest.fixture(scope="module")
def url(script: Script) -> str:
    return script.wait_for(r"target is up at (http://\S+) after")[1]


@pytest.fixture
def remote_solver(url: str) -> Iterator[Solver]:
    settings = (f"engine.urls=[{url}]", "engine.stream_from_tokens=1", f"engine.unavailable_timeout_s={PATIENCE_S}")
    with reason.load("engine=sglang", *settings, "scorer=none", "search=self_consistency") as solver:
        yield solver


def long_requests(solver: Solver, seeds: Sequence[int]) -> list[GenerationRequest]:
    prefix = solver.prompt.encode(QUESTIONS[0])
    return [GenerationRequest(prefix=prefix, params=LONG, seed=seed, group="one") for seed in seeds]


def expect_generations(solver: Solver, seeds: Sequence[int]) -> list[Generation]:
    """What an undisturbed engine in this process generates."""
    generations = asyncio.run(solver.engine.generate(long_requests(solver, seeds)))
    assert min(len(generation.tokens) for generation in generations) > BEFORE, "the texts are too short to disturb"
    return generations


def generate_aside(pool: ThreadPoolExecutor, solver: Solver, seeds: Sequence[int]) -> Future[list[Generation]]:
    """Begins to generate, and returns when some tokens have come."""
    engine = sglang_engine(solver)
    before, pending = engine.stats.tokens, pool.submit(run_all, engine, long_requests(solver, seeds))
    while engine.stats.tokens - before < BEFORE and not pending.done():
        time.sleep(0.01)
    return pending


def run_all(engine: SGLangEngine, requests: list[GenerationRequest]) -> list[Generation]:
    return asyncio.run(engine.generate(requests))


def test_streams_of_a_killed_worker_go_on_at_the_one_that_is_started_again(
    script: Script, url: str, local_solver: Solver, remote_solver: Solver
) -> None:
    expected, (leader,) = expect_generations(local_solver, KILLED_SEEDS), child_pids(script.process.pid)
    with ThreadPoolExecutor() as pool:
        pending = generate_aside(pool, remote_solver, KILLED_SEEDS)
        os.killpg(leader, signal.SIGKILL)
        script.wait_for(r"target ended with -9 and is started again \(0 restarts left\)")
        script.wait_for(rf"target is up at {re.escape(url)} after")  # at the same address
        generations = pending.result(PATIENCE_S)
    assert [one.tokens for one in generations] == [one.tokens for one in expected]
    assert [one.finish for one in generations] == [one.finish for one in expected]
    for one, other in zip(generations, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    stats = sglang_engine(remote_solver).stats
    assert stats.resumed > 0
    assert stats.kept_tokens >= BEFORE, "what had come was generated again"
    assert stats.tokens == sum(len(one.tokens) for one in expected)
    assert child_pids(script.process.pid) != [leader]
    assert not running_members(leader)


def test_a_worker_that_is_asked_to_end_ends_its_streams_first(
    script: Script, local_solver: Solver, remote_solver: Solver
) -> None:
    expected, leaders = expect_generations(local_solver, DRAINED_SEEDS), child_pids(script.process.pid)
    with ThreadPoolExecutor() as pool:
        pending = generate_aside(pool, remote_solver, DRAINED_SEEDS)
        script.process.send_signal(signal.SIGTERM)
        generations = pending.result(PATIENCE_S)
    assert [one.tokens for one in generations] == [one.tokens for one in expected]
    stats = sglang_engine(remote_solver).stats
    assert (stats.reissued, stats.resumed) == (0, 0)
    assert script.process.wait(PATIENCE_S) == 0
    script.wait_for("^stopped$")
    assert not [leader for leader in leaders if running_members(leader)]

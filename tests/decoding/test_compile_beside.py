"""Loops of drafts are compiled in another process, once, and all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decoding import compiling_process as module
from decoding.compile_beside import NoModel, may_begin_without
from decoding.compiling_process import is_compiling_drafts, start_compiling_drafts, wait_for_drafts
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.warmup_profile import name_loops

LOOPS = name_loops(NoModel(), Speculation(TreeDrafter(Stand()), ThroughputController()))

# notes what Numba compiles
LISTEN = """
import asyncio
from numba.core import event
from decoding.core import GenerationRequest, SamplingParams
from decoding.engine import LocalEngine

compiled = []
class Listener(event.Listener):
    def on_start(self, event): pass
    def on_end(self, event): compiled.append(event.data["dispatcher"].py_func.__name__)

event.register("numba:compile", Listener())
"""

# prints it for an engine that drafts
PROGRAM = f"""
{LISTEN}
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from tests.support.fakes import HashBackend

parts = Speculation(TreeDrafter(Stand()), FixedController(4))
engine = LocalEngine(HashBackend(scale=0.0), decode=lambda tokens: "", kv_bytes=1 << 20, speculation=parts)
params = SamplingParams(max_tokens=40)
requests = [GenerationRequest(prefix=(1, 2, 3, 1, 2), params=params, seed=seed) for seed in range(3)]
generations = asyncio.run(engine.generate(requests))
engine.close()
assert sum(generation.usage.drafted for generation in generations)
print(compiled)
"""

# prints it for a model without drafts
PLAIN = f"""
{LISTEN}
from reason.bench.workload import BundledTarget

engine = LocalEngine(BundledTarget.load().backend, decode=lambda tokens: "", kv_bytes=1 << 20)
asyncio.run(engine.generate([GenerationRequest(prefix=(1, 2, 3), params=SamplingParams(max_tokens=4), seed=0)]))
engine.close()
print(*compiled)
"""


class Started:
    """In the place of `subprocess.Popen`: a process that goes on until it `has_ended`."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.command, self.has_ended = command, False

    def poll(self) -> int | None:
        return 0 if self.has_ended else None

    def wait(self, timeout: float) -> int:
        raise subprocess.TimeoutExpired(self.command, timeout)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Started]]:
    """The processes that were started."""
    processes: list[Started] = []

    def start(*given: Any, **more: Any) -> Started:
        processes.append(Started(*given, **more))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    yield processes
    wait_for_drafts()  # the module forgets the last one


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing was compiled ahead; what was noted since."""
    noted: list[str] = []
    monkeypatch.setattr(module, "is_compiled_ahead", noted.__contains__)
    monkeypatch.setattr(module, "note_compiled", noted.append)
    return noted


def test_a_process_is_started_once_where_a_core_is_left_for_it(started: list[Started], notes: list[str]) -> None:
    start_compiling_drafts(1)
    assert not started
    for _ in range(2):
        start_compiling_drafts(2)
        wait_for_drafts()  # one that stands still is not waited for without end
    assert len(started) == 1
    assert notes == [module.LOOPS]


def test_rounds_may_begin_without_drafts_until_the_process_has_ended(started: list[Started], notes: list[str]) -> None:
    assert not may_begin_without(LOOPS)
    start_compiling_drafts(2, is_awaited=False)
    assert is_compiling_drafts()
    assert may_begin_without(LOOPS)
    # those that it does not compile would be compiled in a round
    others = [
        Speculation(TreeDrafter(PromptLookup(), draw="likely"), ThroughputController()),
        Speculation(TreeDrafter(Stand()), FixedController(4)),
    ]
    assert not any(may_begin_without(name_loops(NoModel(), parts)) for parts in others)
    started[0].has_ended = True
    assert not is_compiling_drafts()
    assert not may_begin_without(LOOPS)


def test_a_process_that_stands_still_counts_as_ended_after_a_while(
    started: list[Started], notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    start_compiling_drafts(2, is_awaited=False)
    assert is_compiling_drafts()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1000)
    assert not is_compiling_drafts()


def test_drafts_are_awaited_unless_the_caller_says_otherwise(started: list[Started], notes: list[str]) -> None:
    start_compiling_drafts(2)
    assert is_compiling_drafts()
    assert not may_begin_without(LOOPS)


def test_no_process_compiles_for_a_cache_that_cannot_be_written(
    started: list[Started], notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "note_compiled", lambda loops: None)
    start_compiling_drafts(2)
    assert not started
    assert not notes


def test_without_another_python_this_process_goes_on(notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    start_compiling_drafts(2)
    wait_for_drafts()
    assert notes == [module.LOOPS]


def test_the_other_process_compiles_every_loop_that_drafts_need(tmp_path: Path) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": paths}

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout

    run("from decoding.compile_beside import compile_drafts; compile_drafts()")
    assert run(PROGRAM).strip() == "[]"
    # the parts of a model's layers that take longest, and all that is not of layers
    layers = set(run(PLAIN).split())
    assert "run_layers" in layers
    assert not layers & {
        "_attend",
        "_attend_together",
        "multiply_share",
        "draw_and_measure",
        "draw_from_run",
        "keep_largest",
    }

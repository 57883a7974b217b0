"""From `Solver.solve` to the forward pass few frames of the project are open, over few types."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import CoroutineType, FrameType
from typing import Any

import pytest
from torch import Tensor

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.model.backend import TokenBatch
from reason.solver import Solver
from search.strategies.beam_search import BeamSearch
from search.strategies.best_of_n import BestOfN
from search.strategy import Strategy
from tests.support.fakes import HashBackend
from tests.support.paths import ROOT
from tests.support.toy_solver import BytePrompt, ToyScorerFactory

LAYERS = tuple(str(ROOT / layer) + "/" for layer in ("reason", "search", "decoding"))
MAX_FRAMES, MAX_TYPES = 12, 15
SAMPLING = SamplingParams(max_tokens=6)
STRATEGIES: dict[str, Strategy] = {
    "best_of_n": BestOfN(n=2, sampling=SAMPLING),
    "beam_search": BeamSearch(n=4, depth=2, sampling=SAMPLING),
}


class HashBackendPrompt(BytePrompt):
    """Decodes the tokens of `HashBackend`, of which 256 ends a text."""

    def decode(self, tokens: Tokens) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


class Path:
    """The frames of ours that are open at the first forward pass, from the outside in, and the types they handle.

    Three threads take part. Of the caller's thread and of the engine's worker it is the call stack. On the event loop
    it is the chain of coroutines that await each other: of the search, which waits for its requests, and of the first
    request. A type counts if an object of ours is `self` or an argument of one of these frames, or the first element of
    a list that is.
    """

    def __init__(self) -> None:
        self.caller = threading.get_ident()
        self.tasks: list[asyncio.Task[Any]] = []
        self.frames: list[str] = []
        self.types: set[str] = set()

    def enter_engine(self) -> None:
        """Called by the first request: notes its task and that of the search."""
        request = asyncio.current_task()
        assert request is not None
        if not self.tasks:
            search = next(task for task in asyncio.all_tasks() if "Solver" in task.get_coro().__qualname__)  # type: ignore[union-attr]
            self.tasks = [search, request]

    def enter_forward(self) -> None:
        """Called by the first forward pass: reads the frames of all threads."""
        if self.frames:
            return
        self.wait_until_others_wait()
        self.add_frames(stack_of(sys._current_frames()[self.caller]))
        for task in self.tasks:
            self.add_frames(list(awaited_frames(task.get_coro())))
        self.add_frames(stack_of(sys._getframe(1)))
        self.frames.append("the backend's forward")

    def wait_until_others_wait(self) -> None:
        """Waits until the caller and the search wait: frames they enter and leave on the way there do not count."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            coroutines = [task.get_coro() for task in self.tasks]
            caller = sys._current_frames()[self.caller]
            if caller.f_code.co_filename == threading.__file__ and not any(c.cr_running for c in coroutines):  # type: ignore[union-attr]
                return
            time.sleep(0.01)
        raise TimeoutError("the caller's thread or the event loop never came to rest")

    def add_frames(self, frames: Sequence[FrameType]) -> None:
        for frame in frames:
            if frame.f_code.co_filename.startswith(LAYERS):
                self.frames.append(f"{frame.f_code.co_filename.removeprefix(f'{ROOT}/')}: {frame.f_code.co_qualname}")
                self.types |= set(argument_types(frame))


class WatchedBackend(HashBackend):
    def __init__(self, path: Path) -> None:
        super().__init__(vocab_size=257)
        self.path = path

    def forward(self, batch: TokenBatch, pool: Any) -> Tensor:
        self.path.enter_forward()
        return super().forward(batch, pool)


class WatchedEngine(LocalEngine):
    path: Path

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.path.enter_engine()
        return await super().generate(requests)


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """The call stack that ends in `frame`, outermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def awaited_frames(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of those that it awaits, outermost first."""
    while isinstance(coroutine, CoroutineType):
        if coroutine.cr_frame is not None:
            yield coroutine.cr_frame
        coroutine = coroutine.cr_await


def argument_types(frame: FrameType) -> Iterator[str]:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
    for value in (frame.f_locals.get(name) for name in names):
        for one in value[:1] if isinstance(value, list | tuple) else [value]:
            kind = next((base for base in type(one).__mro__ if base.__module__.split(".")[0] != "tests"), object)
            if kind.__module__.split(".")[0] in ("reason", "search", "decoding"):
                yield f"{kind.__module__}.{kind.__qualname__}"


@pytest.mark.parametrize("name", STRATEGIES)
def test_solve_reaches_the_forward_pass_in_few_frames_and_types(name: str) -> None:
    path = trace_path(STRATEGIES[name])
    print(f"{name}: {len(path.frames)} frames, {len(path.types)} types")  # scripts/dev/house.py shows this line
    assert path.frames[0].endswith("Solver.solve")
    assert path.frames[-2].startswith("decoding/")
    assert len(path.frames) <= MAX_FRAMES, "\n".join([f"{len(path.frames)} frames:", *path.frames])
    assert len(path.types) <= MAX_TYPES, "\n".join([f"{len(path.types)} types:", *sorted(path.types)])


def trace_path(strategy: Strategy) -> Path:
    path = Path()
    prompt: Any = HashBackendPrompt()
    engine = WatchedEngine(WatchedBackend(path), decode=prompt.decode, eos_ids=[256], kv_bytes=4096)
    engine.path = path
    with Solver(strategy=strategy, engine=engine, scorer=ToyScorerFactory(), prompt=prompt) as solver:
        solver.solve("What is 1+1?")
    return path

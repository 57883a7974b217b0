"""Time that passes only while all tasks wait: searches with a clock, without any real time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from decoding.core import Generation, GenerationRequest, Tokens
from search.generations import cut_generation
from search.strategy import SearchResult, Strategy
from tests.support.toy_search import ROOT, ToyEngine, toy_resources


class _Selector(selectors.DefaultSelector):
    """Never waits; `passed` seconds are those that a real one would have waited for."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:  # nothing is due: a thread works
            return super().select(None)
        self.passed += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time jumps to what is due next."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed


def now() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()


class TimedEngine(ToyEngine):
    """Writes every request at `rate` tokens a second, and ends it at its deadline.

    slow_rate   that of the first branch, if it is another
    capacity    requests that are written at the same time; the others wait, in order
    loses_text  whether a request that ends at its deadline has no tokens, as that of a server which replies at the end
    """

    def __init__(
        self,
        write: Callable[[int, Tokens], str],
        rate: float,
        *,
        slow_rate: float | None = None,
        capacity: int = 10**6,
        loses_text: bool = False,
    ) -> None:
        super().__init__(write)
        self._rate, self._slow_rate = rate, rate if slow_rate is None else slow_rate
        self._places, self._loses_text = asyncio.Semaphore(capacity), loses_text

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return list(await asyncio.gather(*map(self._write_slowly, requests)))

    async def _write_slowly(self, request: GenerationRequest) -> Generation:
        (generation,) = await super().generate([request])
        rate = self._slow_rate if request.seed == self.requests[0].seed else self._rate
        try:
            async with asyncio.timeout_at(request.deadline):
                await self._places.acquire()
        except TimeoutError:
            return self._cut(generation, 0)
        try:
            started, needed = now(), len(generation.tokens) / rate
            left = needed if request.deadline is None else request.deadline - started
            await asyncio.sleep(max(0.0, min(left, needed)))
        finally:
            self._places.release()
        if needed <= left:
            return generation
        return self._cut(generation, 0 if self._loses_text else int(max(0.0, left) * rate))

    def _cut(self, generation: Generation, count: int) -> Generation:
        usage = replace(generation.usage, tokens=count, forwards=count)
        return replace(cut_generation(generation, count), finish="deadline", usage=usage)


def run_in_virtual_time(strategy: Strategy, **changes: Any) -> SearchResult:
    """Runs a search of the toy question whose clock is that of the loop; `changes` as in `toy_resources`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(strategy(ROOT, toy_resources(clock=now, **changes)))
    result.tree.assert_invariants()
    return result

"""The text of a solution is told while an engine writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens
from reason.engines import growing_text
from reason.engines.growing_text import GrowingTextGenerator
from tests.support.toy_search import ToyEngine

ROOT = (1, 2, 3)


class RunningEngine(ToyEngine):
    """Writes given runs of tokens, each told by itself."""

    runs: Sequence[Sequence[int]] = ()
    closes_loop = False

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        (request,) = requests
        assert request.on_tokens is not None
        loop = asyncio.get_running_loop()
        for run in self.runs:
            await loop.run_in_executor(None, request.on_tokens, run)
            await asyncio.sleep(0)
        return [self.continue_prefix(request)]


def decode_utf8(tokens: Tokens) -> str:
    return bytes(tokens).decode(errors="replace")


def tell_texts(engine: RunningEngine, begun: Tokens = ()) -> list[str]:
    texts: list[str] = []

    async def run() -> None:
        generator = GrowingTextGenerator(engine, decode_utf8, len(ROOT), texts.append)
        await generator.generate([GenerationRequest(prefix=(*ROOT, *begun), params=SamplingParams(), seed=0)])

    asyncio.run(run())
    return texts


@given(text=st.text(min_size=1), cuts=st.lists(st.integers(1, 5), min_size=1), begun=st.text())
def test_every_telling_is_a_beginning_of_the_text_and_the_last_one_all_of_it(
    text: str, cuts: list[int], begun: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing_text, "INTERVAL_S", 1e-9)
        tokens, at, runs = text.encode(errors="replace"), 0, list[list[int]]()
        while at < len(tokens):
            size = cuts[len(runs) % len(cuts)]
            runs.append(list(tokens[at : at + size]))
            at += size
        engine = RunningEngine()
        engine.runs = runs
        texts = tell_texts(engine, tuple(begun.encode(errors="replace")))
    whole = (begun.encode(errors="replace") + tokens).decode()
    assert all(whole.startswith(each) for each in texts)
    assert texts == sorted(texts, key=len)
    assert texts[-1] == whole


def test_tellings_are_no_closer_than_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr(growing_text, "INTERVAL_S", 4)
    monkeypatch.setattr("reason.engines.growing_text.time.monotonic", lambda: now)
    texts: list[str] = []

    async def run() -> None:
        nonlocal now

        class Clocked(RunningEngine):
            async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
                nonlocal now
                (request,) = requests
                assert request.on_tokens is not None
                for _ in range(10):
                    request.on_tokens([ord("a")])
                    await asyncio.sleep(0)
                    now += 1
                return [self.continue_prefix(request)]

        generator = GrowingTextGenerator(Clocked(), decode_utf8, len(ROOT), texts.append)
        await generator.generate([GenerationRequest(prefix=ROOT, params=SamplingParams(), seed=0)])

    asyncio.run(run())
    assert texts == ["a", "a" * 5, "a" * 9]


def test_token_behind_the_end_of_the_loop_is_no_error() -> None:
    calls: list[GenerationRequest] = []

    class Keeping(RunningEngine):
        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            calls.extend(requests)
            return [self.continue_prefix(requests[0])]

    assert tell_texts(Keeping()) == []
    assert calls[0].on_tokens is not None
    calls[0].on_tokens([ord("a")])

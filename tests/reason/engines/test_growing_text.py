"""The text of a solution is told while an engine writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens
from reason.engines import growing_text
from reason.engines.growing_text import GrowingText, GrowingTextGenerator
from tests.support.toy_search import ToyEngine

ROOT = (1, 2, 3)
WHOLE = "2 × 3 = 6 ✓"


class PatientEngine(ToyEngine):
    """Tells a token, on another thread, when everything before it has been read."""

    def __init__(self, texts: list[str], begun: str = "") -> None:
        super().__init__()
        self.texts, self.begun = texts, begun

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        (request,) = requests
        assert request.on_tokens is not None
        loop, whole = asyncio.get_running_loop(), self.begun
        for character in WHOLE:
            await loop.run_in_executor(None, request.on_tokens, list(character.encode()))
            whole += character
            while not self.texts or self.texts[-1] != whole:
                await asyncio.sleep(0.001)
        return [self.continue_prefix(request)]


def decode_utf8(tokens: Tokens) -> str:
    return bytes(tokens).decode(errors="replace")


@given(text=st.text(min_size=1), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_text_is_a_beginning_of_the_whole_and_in_the_end_all_of_it(text: str, sizes: list[int]) -> None:
    tokens = list(text.encode(errors="replace"))
    growing, number = GrowingText(decode_utf8, []), 0
    while len(growing.tokens) < len(tokens):
        at = len(growing.tokens)
        growing.tokens.extend(tokens[at : at + sizes[number % len(sizes)]])
        before, has_more = growing.text, growing.read_tokens()
        assert has_more == (growing.text != before)
        assert bytes(tokens).decode().startswith(growing.text)
        number += 1
    assert growing.text == bytes(tokens).decode()


@pytest.mark.parametrize("begun", ["", "1 + "])
def test_every_token_is_told_with_all_before_it_but_the_prompt(monkeypatch: pytest.MonkeyPatch, begun: str) -> None:
    monkeypatch.setattr(growing_text, "INTERVAL_S", 0.001)
    texts: list[str] = []

    async def run() -> set[asyncio.Task[object]]:
        engine = PatientEngine(texts, begun)
        generator = GrowingTextGenerator(engine, decode_utf8, len(ROOT), texts.append)
        prefix = (*ROOT, *begun.encode())
        await generator.generate([GenerationRequest(prefix=prefix, params=SamplingParams(), seed=0)])
        await asyncio.sleep(0.005)
        return asyncio.all_tasks()

    assert len(asyncio.run(run())) == 1  # nothing goes on telling
    ends = [begun + WHOLE[:count] for count in range(1, len(WHOLE) + 1)]
    assert [text for text in texts if text != begun] == ends

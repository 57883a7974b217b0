"""A writer with one token per character, a scorer by table, and a question for them: all a search test needs."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoding.core import FinishReason, Generation, GenerationRequest, Spent, Tokens, Vector
from search.strategy import Resources, ScoredPaths, SearchResult
from search.tree import Step

EOS = 0
ROOT: Tokens = tuple(b"Question: toy?\n")


def decode(tokens: Tokens) -> str:
    return bytes(t for t in tokens if t != EOS).decode("latin-1")


def answer_of(text: str) -> str | None:
    found = re.findall(r"boxed\{(\d+)\}", text)
    return found[-1] if found else None


def solution(seed: int, prefix: Tokens) -> str:
    """Zero to three more steps and an answer of one digit, from the seed and the prefix alone."""
    rng = random.Random(f"{seed}:{prefix}")
    steps = [f"Try {rng.randrange(1000)}.\n\n" for _ in range(rng.randrange(4))]
    return "".join(steps) + f"The answer is \\boxed{{{min(rng.randrange(6), rng.randrange(6))}}}."


@dataclass
class ToyEngine:
    """Continues any prefix with `write(seed, prefix)` and an end-of-sequence token; remembers what it was asked."""

    write: Any = solution
    requests: list[GenerationRequest] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.requests += requests
        self.batches.append(len(requests))
        return [self._continue(request) for request in requests]

    def _continue(self, request: GenerationRequest) -> Generation:
        tokens = (*self.write(request.seed, request.prefix).encode("latin-1"), EOS)
        finish: FinishReason = "eos"
        for stop in request.params.stop:
            at = decode(tokens).find(stop)
            if at >= 0 and at + len(stop) < len(tokens):
                tokens, finish = tokens[: at + len(stop)], "stop"
        if len(tokens) > request.params.max_tokens:
            tokens, finish = tokens[: request.params.max_tokens], "length"
        spent = Spent(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), forwards=len(tokens))
        return Generation(tokens=tokens, logprobs=(-0.5,) * len(tokens), finish=finish, spent=spent)


class UnsteadyEngine(ToyEngine):
    """The same, but who is asked first is not done first."""

    def __init__(self, seed: int, write: Any = solution) -> None:
        super().__init__(write)
        self._rng = random.Random(seed)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)
        return await super().generate(requests)


@dataclass
class ToyScorer:
    """A step's score is a function of its text; counts the calls it gets and the paths in them."""

    calls: list[int] = field(default_factory=list)

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        self.calls.append(len(paths))
        scores: list[list[float] | None] = [[self.of(step.text) for step in path] for path in paths]
        return ScoredPaths(scores, Spent(scorer_calls=len(paths), scored_tokens=sum(map(len, paths))))

    @staticmethod
    def of(text: str) -> float:
        return random.Random(text).random()


class ToyEmbedder:
    """Two steps are alike if they end with the same digits."""

    wants_hidden = False
    cut = 0.5

    def __init__(self, digits: int = 1) -> None:
        self.digits = digits

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        return np.array([self._vector(step.text) for step in steps], dtype=np.float32)

    def _vector(self, text: str) -> list[float]:
        number = int("".join(re.findall(r"\d", text))[-self.digits :] or "0")
        return [float(i == number) for i in range(10**self.digits)]


def resources(**changes: Any) -> Resources:
    """What a test gives a strategy; any field may be changed."""
    given: dict[str, Any] = {
        "engine": ToyEngine(),
        "scorer": ToyScorer(),
        "decode": decode,
        "answer_of": answer_of,
        "seed": 1,
        "embedder": ToyEmbedder(),
    }
    return Resources(**(given | changes))


def run(strategy: Any, **changes: Any) -> SearchResult:
    """A search of the toy question, its tree checked; `changes` as in `resources`."""
    result: SearchResult = asyncio.run(strategy(ROOT, resources(**changes)))
    result.tree.check()
    return result

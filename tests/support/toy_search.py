"""Fakes for tests of searches: an engine with one token per character, a scorer, an embedder and a question."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from decoding.core import FinishReason, Generation, GenerationRequest, Tokens, Usage, Vector
from search.problem_text import ProblemText
from search.strategy import Resources, ScoredPaths, SearchResult, Strategy
from search.tree import SearchTree, Step
from tests.support.fakes import EngineWithoutModel

EOS = 0
ROOT: Tokens = tuple(b"Question: toy?\n")


def decode_bytes(tokens: Tokens) -> str:
    return bytes(t for t in tokens if t != EOS).decode("latin-1")


def extract_answer(text: str) -> str | None:
    answers = re.findall(r"boxed\{(\d+)\}", text)
    return answers[-1] if answers else None


def write_solution(seed: int, prefix: Tokens) -> str:
    """Zero to three more steps and an answer of one digit, from the seed and the prefix alone."""
    rng = random.Random(f"{seed}:{prefix}")
    steps = [f"Try {rng.randrange(1000)}.\n\n" for _ in range(rng.randrange(4))]
    return "".join(steps) + f"The answer is \\boxed{{{min(rng.randrange(6), rng.randrange(6))}}}."


def write_five_steps(seed: int, prefix: Tokens) -> str:
    """Five steps below the root, then an answer."""
    rng = random.Random(f"{seed}:{prefix}")
    remaining = 5 - bytes(prefix).count(b"\n\n")
    if remaining > 0:
        return "".join(f"Try {rng.randrange(1000)}.\n\n" for _ in range(remaining)) + "\\boxed{1}"
    return f"The answer is \\boxed{{{rng.randrange(3)}}}."


@dataclass
class ToyEngine(EngineWithoutModel):
    """Continues any prefix with `write(seed, prefix)` and an end-of-sequence token; records its requests.

    measures   whether it says how sure it is where a request asks for that: it always is
    hesitates  whether it then names another token too that was likely, a digit
    """

    write: Callable[[int, Tokens], str] = write_solution
    measures: bool = True
    hesitates: bool = False
    requests: list[GenerationRequest] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.requests += requests
        self.batches.append(len(requests))
        return [self.continue_prefix(request) for request in requests]

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        tokens = (*self.write(request.seed, request.prefix).encode("latin-1"), EOS)
        finish: FinishReason = "eos"
        for stop in request.params.stop:
            at = decode_bytes(tokens).find(stop)
            if at >= 0 and at + len(stop) < len(tokens):
                tokens, finish = tokens[: at + len(stop)], "stop"
        if len(tokens) > request.params.max_tokens:
            tokens, finish = tokens[: request.params.max_tokens], "length"
        usage = Usage(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), forwards=len(tokens))
        generation = Generation(tokens=tokens, logprobs=(-0.5,) * len(tokens), finish=finish, usage=usage)
        if not (self.measures and request.num_top):
            return generation
        return measure_as_sure(generation, request.num_top, hesitates=self.hesitates)


def measure_as_sure(generation: Generation, num_top: int, *, hesitates: bool = False) -> Generation:
    """Returns a generation with the measures of a model that is sure of every token, and names a second one or not."""
    shape = (len(generation.tokens), num_top)
    top_logprobs, top_ids = np.full(shape, np.nan, dtype=np.float32), np.full(shape, -1, dtype=np.int32)
    top_logprobs[:, 0], top_ids[:, 0] = generation.logprobs, generation.tokens
    if hesitates and num_top > 1:
        top_logprobs[:, 1] = -2.0
        top_ids[:, 1] = [ord("1") if token == ord("0") else ord("0") for token in generation.tokens]
    entropies = np.zeros(shape[0], dtype=np.float32)
    return replace(generation, top_logprobs=top_logprobs, top_ids=top_ids, entropies=entropies)


class UnsteadyEngine(ToyEngine):
    """A `ToyEngine` whose requests complete in another order than they start."""

    def __init__(self, seed: int, write: Callable[[int, Tokens], str] = write_solution) -> None:
        super().__init__(write)
        self._rng = random.Random(seed)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)
        return await super().generate(requests)


@dataclass
class ToyScorer:
    """Scores a step by its text alone; records the number of paths in each call."""

    calls: list[int] = field(default_factory=list)

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        self.calls.append(len(paths))
        scores: list[list[float] | None] = [[self.score_text(step.text) for step in path] for path in paths]
        return ScoredPaths(scores, Usage(scorer_calls=len(paths), scored_tokens=sum(map(len, paths))))

    @staticmethod
    def score_text(text: str) -> float:
        return random.Random(text).random()


class ConstantScorer(ToyScorer):
    """Scores every step with 0.5, so that all decisions are ties."""

    @staticmethod
    def score_text(text: str) -> float:
        return 0.5


class SomeStepsScorer(ToyScorer):
    """Leaves out the steps whose texts have an even length."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([[self.score_text(s.text) if len(s.text) % 2 else None for s in p] for p in paths])


class ToyEmbedder:
    """Two steps have the same meaning if they end with the same digits."""

    needs_hidden_states = False
    distance_threshold = 0.5

    def __init__(self, digits: int = 1) -> None:
        self.digits = digits

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        return np.array([self._vector(step.text) for step in steps], dtype=np.float32)

    def _vector(self, text: str) -> list[float]:
        number = int("".join(re.findall(r"\d", text))[-self.digits :] or "0")
        return [float(i == number) for i in range(10**self.digits)]


def toy_text(**changes: Any) -> ProblemText:
    """The toy question and its prompts, one token per character; `changes` replace any field."""
    fields: dict[str, Any] = {
        "question": "toy?",
        "render_question": lambda question: tuple(f"Question: {question}\n".encode("latin-1")),
        "render_request": lambda request: tuple(f"Request: {request}\n".encode("latin-1")),
        "encode": lambda text: tuple(text.encode("latin-1")),
        "split": lambda solution: ("", solution, True),
    }
    return ProblemText(**(fields | changes))


def toy_resources(**changes: Any) -> Resources:
    """Resources of a search of the toy question; `changes` replace any field."""
    fields: dict[str, Any] = {
        "engine": ToyEngine(),
        "scorer": ToyScorer(),
        "decode": decode_bytes,
        "extract_answer": extract_answer,
        "seed": 1,
        "embedder": ToyEmbedder(),
        "problem_text": toy_text(),
    }
    return Resources(**(fields | changes))


def run_search(strategy: Strategy, **changes: Any) -> SearchResult:
    """Runs a search of the toy question and checks its tree; `changes` as in `toy_resources`."""
    result = asyncio.run(strategy(ROOT, toy_resources(**changes)))
    result.tree.assert_invariants()
    return result


def nodes_by_parent(tree: SearchTree) -> dict[int, list[int]]:
    """The children of each node that has any, in order."""
    children: dict[int, list[int]] = {}
    for i, node in enumerate(tree.nodes):
        children.setdefault(node.parent, []).append(i)
    return children


def nodes_by_level(tree: SearchTree) -> list[list[int]]:
    """The nodes of each depth, in order."""
    levels: dict[int, list[int]] = {}
    for i, node in enumerate(tree.nodes):
        levels.setdefault(node.depth, []).append(i)
    return list(levels.values())

"""Measures what searches cost by themselves: no model, no reward model, only the strategy and its tree."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from decoding.core import FinishReason, Generation, GenerationRequest, SamplingParams, Tokens, Usage, Vector
from reason.bench.report import join_report
from reason.runs.tables import ResultTable
from search.strategies.astar import AStar
from search.strategies.beam_search import BeamSearch
from search.strategies.best_of_n import BestOfN
from search.strategies.dvts import Dvts
from search.strategies.ets import Ets
from search.strategies.mcts import Mcts
from search.strategies.particle_filter import ParticleFilter
from search.strategies.rebase import Rebase
from search.strategies.treepo import TreePo
from search.strategy import Resources, ScoredPaths, Strategy
from search.tree import Step

_STEP_TOKENS = 30
_PROMPT = tuple(b"How many? " * 30)
_EOS = 0
_LOGPROBS = tuple(0.5 + at / 1024 for at in range(_STEP_TOKENS))


class Stopwatch:
    """Adds up CPU seconds of calls that do not overlap: of what runs inside `with watch:`.

    No `contextmanager`: its generator takes 3 microseconds, which would count as the search's.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.process_time()  # the clock from which these seconds are subtracted

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._begin


class FreeEngine:
    """Implements `TokenGenerator`: each step has 30 tokens of its own, the last one of a path is an answer."""

    def __init__(self, depth: int, watch: Stopwatch) -> None:
        self.depth = depth
        self.num_requests = 0
        self._watch = watch

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Returns one step of each request at once."""
        with self._watch:
            return [self._write_step(request) for request in requests]

    def _write_step(self, request: GenerationRequest) -> Generation:
        self.num_requests += 1
        number = request.seed % 1_000_000
        if len(request.prefix) - len(_PROMPT) >= (self.depth - 1) * _STEP_TOKENS:
            tokens: Tokens = (*f"The answer is \\boxed{{{number % 7}}}".encode().ljust(_STEP_TOKENS - 1), _EOS)
            return _generation(request, tokens, "eos")
        return _generation(request, tuple(f"Step {number}".encode().ljust(_STEP_TOKENS - 2) + b"\n\n"), "stop")


def _generation(request: GenerationRequest, tokens: Tokens, finish: FinishReason) -> Generation:
    usage = Usage(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), forwards=len(tokens))
    logprobs = tuple(map(float.__neg__, _LOGPROBS))  # a number each, as a model's, for the memory
    return Generation(tokens=tokens, logprobs=logprobs, finish=finish, usage=usage)


def _number(step: Step) -> int:
    return sum(step.tokens[5:12]) % 97


class FreeScorer:
    """Implements `StepScorer`: the score of a step is a function of its text."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """Returns scores in [0.5, 1)."""
        with self._watch:
            return ScoredPaths([[0.5 + _number(step) / 200 for step in path] for path in paths])


class FreeEmbedder:
    """Implements `StepEmbedder`: steps have one of eight meanings."""

    needs_hidden_states = False
    distance_threshold = 0.5

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        """Returns unit vectors `[n, 8]`."""
        with self._watch:
            return np.eye(8, dtype=np.float32)[[_number(step) % 8 for step in steps]]


@dataclass(frozen=True)
class BookkeepingCost:
    """What one search cost: bytes at the peak and nodes of its tree, and the branches that it continued by a step.

    cpu_s     CPU seconds of the fastest run
    models_s  of these, seconds of the free engine, scorer and embedder
    """

    strategy: str
    width: int
    branch_steps: int
    nodes: int
    cpu_s: float
    models_s: float
    peak_bytes: int

    @property
    def us_per_step(self) -> float:
        """CPU microseconds per branch and step, those of the free models left out."""
        return 1e6 * (self.cpu_s - self.models_s) / self.branch_steps

    @property
    def bytes_per_node(self) -> float:
        """Bytes at the peak per node of the tree: its tokens, text, score and place, and what the strategy keeps."""
        return self.peak_bytes / self.nodes

    def to_json(self) -> dict[str, object]:
        """Returns the fields, the microseconds per branch and step, and the bytes per node."""
        return asdict(self) | {"us_per_step": self.us_per_step, "bytes_per_node": self.bytes_per_node}


def list_strategies(width: int, depth: int) -> dict[str, Strategy]:
    """Returns strategies that continue `width` branches at a time, by name."""
    sampling = SamplingParams(max_tokens=_STEP_TOKENS * depth)
    common: dict[str, Any] = {"depth": depth, "step_tokens": 2 * _STEP_TOKENS, "sampling": sampling}
    beam = max(width // 4, 1)
    return {
        "best_of_n": BestOfN(n=width, sampling=sampling),
        "beam_search": BeamSearch(n=width, beam_width=min(4, width), **common),
        "dvts": Dvts(n=width, beam_width=min(4, width), **common),
        "rebase": Rebase(n=width, **common),
        "ets": Ets(n=width, **common),
        "particle_filter": ParticleFilter(n=width, **common),
        "mcts": Mcts(n=width, parallel=beam, **common),
        "astar": AStar(n=beam, branching=4, parallel=beam, expansions=width, **common),
        "treepo": TreePo(n=width, **common),
    }


def measure_search(name: str, width: int, depth: int, repeats: int) -> BookkeepingCost:
    """Runs one search for its memory, and again for its CPU seconds: the first count slows Python down."""
    strategy = list_strategies(width, depth)[name]

    async def search() -> tuple[int, int, float, float]:
        watch = Stopwatch()
        engine = FreeEngine(depth, watch)
        resources = Resources(
            engine=engine, scorer=FreeScorer(watch), embedder=FreeEmbedder(watch), decode=_decode,
            extract_answer=_extract_answer, seed=1,
        )  # fmt: skip
        # here: what makes and ends an event loop is not the search's, and at its end asyncio formats what it returns
        begin = time.process_time()
        result = await strategy(_PROMPT, resources)
        return engine.num_requests, len(result.tree), time.process_time() - begin, watch.seconds

    asyncio.run(search())  # imports what the strategy needs
    tracemalloc.start()
    branch_steps, nodes, *_ = asyncio.run(search())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    cpu_s, models_s = min(asyncio.run(search())[2:] for _ in range(repeats))
    return BookkeepingCost(name, width, branch_steps, nodes, cpu_s, models_s, peak)


def make_table(costs: Sequence[BookkeepingCost]) -> ResultTable:
    """Returns the table of the terminal and of the report."""
    header = [
        "strategy",
        "branches",
        "steps written",
        "nodes",
        "us per branch and step",
        "models, us",
        "bytes per node",
    ]
    rows = [
        [
            cost.strategy,
            f"{cost.width:,}",
            f"{cost.branch_steps:,}",
            f"{cost.nodes:,}",
            f"{cost.us_per_step:.0f}",
            f"{1e6 * cost.models_s / cost.branch_steps:.0f}",
            f"{cost.bytes_per_node:,.0f}",
        ]
        for cost in costs
    ]
    return ResultTable("CPU time and memory of the searches themselves", header, rows)


def format_report(result: Mapping[str, Any], costs: Sequence[BookkeepingCost], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    about = (
        f"Searches over free models: an engine that returns a step of {_STEP_TOKENS} tokens at once, a scorer and an "
        f"embedder that read a few bytes. Solutions have {result['depth']} steps. CPU microseconds of the process "
        f"per branch and step, the fastest of {result['repeats']} runs; those of the free models stand apart. Bytes at "
        "the peak per node of the tree."
    )
    parts = [about, make_table(costs).markdown_section()]
    return join_report("What searches cost by themselves", command, parts, machine=result["machine"], figures=result)


def _decode(tokens: Tokens) -> str:
    return bytes(tokens).decode("latin-1")


def _extract_answer(text: str) -> str | None:
    return text.rpartition("boxed{")[-1].partition("}")[0] if "boxed{" in text else None

"""Times engines on equal workloads, in turns, and compares what they decode greedily."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np

from decoding.core import Tokens
from reason.bench.baselines import BranchWorkload
from reason.bench.peers.installed import OURS
from reason.bench.peers.interface import PeerEngine

Clock = Literal["wall", "cpu"]
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class PeerSeconds:
    """Duration of a run. `cpu` counts all threads of the process: neighbours on the machine do not lengthen it much."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Quartiles:
    """The 25, 50 and 75 % quantiles of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of_values(cls, values: Iterable[float]) -> Quartiles:
        """Returns those of at least one value."""
        return cls(*(float(value) for value in np.quantile(list(values), [0.25, 0.5, 0.75])))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass
class PeerComparison:
    """All runs of one workload by engine, in the order of the rounds in which they were made."""

    workload: BranchWorkload
    runs: dict[str, list[PeerSeconds]] = field(default_factory=dict)

    def quartiles(self, name: str, clock: Clock) -> Quartiles:
        """Returns those of an engine's seconds."""
        return Quartiles.of_values(getattr(run, clock) for run in self.runs[name])

    def ratios(self, name: str, clock: Clock) -> Quartiles:
        """Returns those of an engine's seconds over ours in the same round: above 1 the local engine is faster."""
        pairs = zip(self.runs[name], self.runs[OURS], strict=True)
        return Quartiles.of_values(getattr(theirs, clock) / getattr(ours, clock) for theirs, ours in pairs)


def compare_peers(
    engines: Mapping[str, PeerEngine],
    workloads: Sequence[BranchWorkload],
    rounds: int,
    on_run: Callable[[str, BranchWorkload, PeerSeconds], None] = lambda name, workload, seconds: None,
) -> list[PeerComparison]:
    """Lets every engine decode every workload `rounds` times, in turns, after a short warm-up of each.

    Raises: RuntimeError where an engine returns another number of tokens than it should.
    """
    comparisons = [PeerComparison(workload) for workload in workloads]
    for workload, engine in product(workloads, engines.values()):
        time_run(engine, BranchWorkload(workload.prompt, _WARM_UP_TOKENS, workload.branches))
    for _ in range(rounds):
        for comparison, (name, engine) in product(comparisons, engines.items()):
            seconds = time_run(engine, comparison.workload)
            comparison.runs.setdefault(name, []).append(seconds)
            on_run(name, comparison.workload, seconds)
    return comparisons


def time_run(engine: PeerEngine, workload: BranchWorkload) -> PeerSeconds:
    """Returns the seconds that an engine takes. Raises: RuntimeError for a wrong number of branches or tokens."""
    with engine.open_run(workload) as decode:
        wall, cpu = time.perf_counter(), time.process_time()
        branches = decode()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lengths = [len(tokens) for tokens in branches]
    if lengths != [workload.new] * workload.branches:
        raise RuntimeError(
            f"{engine.description}: {len(lengths)} branches with {sum(lengths)} tokens; "
            f"{workload.branches} branches with {workload.tokens} are needed"
        )
    return PeerSeconds(wall, cpu)


@dataclass(frozen=True)
class GreedyAgreement:
    """How many greedy tokens an engine and the local one have in common before they differ, of all that are compared.

    A text is compared up to its end.
    """

    agreeing: int
    compared: int

    def __str__(self) -> str:
        return f"{self.agreeing} of {self.compared}"


def compare_greedy(
    engines: Mapping[str, PeerEngine], prompts: Sequence[Tokens], new: int, ends: frozenset[int]
) -> dict[str, GreedyAgreement]:
    """Returns the agreement of each engine with the local one, over all prompts."""
    texts = {
        name: [decode_greedily(engine, prompt, new, ends) for prompt in prompts] for name, engine in engines.items()
    }
    return {name: count_agreement(texts[OURS], texts[name]) for name in engines if name != OURS}


def decode_greedily(engine: PeerEngine, prompt: Tokens, new: int, ends: frozenset[int]) -> Tokens:
    """Returns at most `new` likeliest tokens, up to the end of the text, which is left out."""
    with engine.open_run(BranchWorkload(prompt, new, 1), greedy=True) as decode:
        (tokens,) = decode()
    return tokens[: next((i for i, token in enumerate(tokens) if token in ends), len(tokens))]


def count_agreement(ours: Sequence[Tokens], theirs: Sequence[Tokens]) -> GreedyAgreement:
    """Returns the common beginnings of pairs of texts, and the longer texts, in tokens.

    >>> str(count_agreement([(1, 2, 3), (4, 5)], [(1, 2, 9), (4, 5, 6)]))
    '4 of 6'
    """
    agreeing = compared = 0
    for left, right in zip(ours, theirs, strict=True):
        differing = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
        agreeing += next(differing, min(len(left), len(right)))
        compared += max(len(left), len(right))
    return GreedyAgreement(agreeing, compared)

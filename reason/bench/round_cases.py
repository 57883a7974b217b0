"""Traces rounds of several models, workloads and settings, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from decoding.core import SamplingParams
from decoding.validation import require_choice
from reason.bench.meta_model import MetaBackend
from reason.bench.puppet import find_shape
from reason.bench.round_contexts import BestOfNContexts, ContextSource, SearchContexts
from reason.bench.round_trace import RoundTrace, trace_source

WORKLOADS = ("best_of_n", "search")
ALL_MODELS = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b")
REASONING_SAMPLING = SamplingParams(temperature=0.6, top_p=0.95)
"""The sampling that reasoning models recommend."""


@dataclass(frozen=True)
class TracedCase:
    """A trace, and what was traced: model, workload, draft nodes per branch, sampling."""

    model: str
    workload: str
    nodes: int
    sampling: str
    trace: RoundTrace

    @property
    def title(self) -> str:
        """What the table of the case has in common."""
        return f"{self.model}, {self.sampling}"

    @property
    def cells(self) -> list[str]:
        """The first cells of a row about it."""
        return [self.workload, str(self.trace.branches), str(self.nodes)]


@dataclass(frozen=True)
class TraceGrid:
    """What to trace: every combination of the lists.

    problems  of a search
    nodes     draft nodes per branch on average
    seed      of lengths and drafts

    Raises: ValueError naming the valid values.
    """

    models: Sequence[str]
    workloads: Sequence[str]
    branches: Sequence[int]
    nodes: Sequence[int]
    sampling: Sequence[SamplingParams]
    problems: int
    attention: str
    seed: int

    def __post_init__(self) -> None:
        for model in self.models:
            find_shape(model)
        for workload in self.workloads:
            require_choice("workload", workload, WORKLOADS)

    def trace_cases(self) -> Iterator[TracedCase]:
        """Yields each case once it has been traced."""
        for model in self.models:
            backend = MetaBackend(find_shape(model), attention=self.attention)
            for workload, branches, nodes, params in product(self.workloads, self.branches, self.nodes, self.sampling):
                source = self._make_source(workload, branches)
                trace = trace_source(backend, source, nodes=nodes, params=params, seed=self.seed)
                yield TracedCase(model, workload, nodes, _describe_sampling(params), trace)

    def _make_source(self, workload: str, branches: int) -> ContextSource:
        return BestOfNContexts(branches) if workload == "best_of_n" else SearchContexts(branches, self.problems)


def make_sampling(temperature: float, top_p: float, top_k: int) -> SamplingParams:
    """Returns the parameters. Raises: ValueError naming the one that is out of range."""
    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)


def _describe_sampling(params: SamplingParams) -> str:
    return f"T {params.temperature:g}, top_p {params.top_p:g}, top_k {params.top_k}"

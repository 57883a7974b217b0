"""Measures the compiled decoder of a CPU beside the eager one: rounds of decoding, and prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import BranchWorkload, run_ours
from reason.bench.puppet import find_shape
from reason.bench.report import join_report
from reason.runs.tables import ResultTable

KINDS = ("compiled", "eager")
Backends = Mapping[str, HFBackend]


@dataclass(frozen=True)
class DecoderSeconds:
    """Seconds of a run: of a clock, and of all cores together."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class DecoderComparison:
    """Runs of one number of branches by decoder, in the order they were made: of `new` tokens each, and of one."""

    branches: int
    new: int
    whole: dict[str, list[DecoderSeconds]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    first: dict[str, list[DecoderSeconds]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def round_seconds(self, kind: str) -> list[float]:
        """Seconds of a round after the first, which has the prompt."""
        pairs = zip(self.whole[kind], self.first[kind], strict=True)
        return [(whole.wall - first.wall) / (self.new - 1) for whole, first in pairs]

    def prompt_seconds(self, kind: str) -> list[float]:
        """Seconds to the first token of each branch."""
        return [run.wall for run in self.first[kind]]

    def cpu_seconds(self, kind: str) -> list[float]:
        """Seconds of whole runs on all cores together."""
        return [run.cpu for run in self.whole[kind]]

    def to_json(self) -> dict[str, Any]:
        """Returns the medians, and the ratios eager over compiled of neighbouring runs, ascending."""
        parts: dict[str, Callable[[str], list[float]]] = {
            "round": self.round_seconds, "prompt": self.prompt_seconds, "cpu": self.cpu_seconds,
        }  # fmt: skip
        result: dict[str, Any] = {"branches": self.branches}
        for name, seconds in parts.items():
            ratios = sorted(eager / ours for ours, eager in zip(*map(seconds, KINDS), strict=True))
            result[name] = {kind: median(seconds(kind)) for kind in KINDS} | {"speedups": ratios}
        return result


def load_checkpoint(source: str) -> Backends:
    """Loads a checkpoint once for each decoder."""
    return {kind: HFBackend.from_pretrained(source, device="cpu", dtype="float32", decoder=kind) for kind in KINDS}


def make_random_model(shape: str) -> Backends:
    """Makes a random model of a shape of `reason.bench.puppet` for each decoder."""
    return {
        kind: HFBackend(
            find_shape(shape).make_model(torch.device("cpu"), torch.float32),
            device="cpu", dtype="float32", decoder=kind, frees_model=True,
        )
        for kind in KINDS
    }  # fmt: skip


def compare_decoders(
    backends: Backends, *, branches: Sequence[int], prompt: int, new: int, repeats: int
) -> Iterator[DecoderComparison]:
    """Yields a comparison per number of branches; the runs alternate, after one pair that is not counted.

    Raises: ValueError for less than two new tokens, which have no round without a prompt.
    """
    if new < 2:
        raise ValueError(f"new must be at least 2, got {new}")
    vocab_size = min(backend.vocab_size for backend in backends.values())
    tokens = tuple(number * 37 % vocab_size for number in range(prompt))
    for count in branches:
        comparison = DecoderComparison(count, new)
        for repeat in range(-1, repeats):
            for length, runs in ((new, comparison.whole), (1, comparison.first)):
                for kind, backend in backends.items():
                    seconds = _time_run(backend, BranchWorkload(tokens, length, count))
                    if repeat >= 0:
                        runs[kind].append(seconds)
        yield comparison


def _time_run(backend: HFBackend, workload: BranchWorkload) -> DecoderSeconds:
    begin = time.process_time()
    run = run_ours(backend, workload)
    return DecoderSeconds(run.seconds, time.process_time() - begin)


def make_table(points: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Returns `DecoderComparison.to_json` of several numbers of branches as a table."""
    header = (
        "branches", "round, compiled, ms", "round, eager, ms", "eager / compiled", "lowest", "highest",
        "prompt, eager / compiled", "CPU, eager / compiled",
    )  # fmt: skip
    rows = [
        [
            str(point["branches"]),
            *(f"{1e3 * point['round'][kind]:,.1f}" for kind in KINDS),
            f"{median(point['round']['speedups']):.2f}",
            f"{point['round']['speedups'][0]:.2f}",
            f"{point['round']['speedups'][-1]:.2f}",
            f"{median(point['prompt']['speedups']):.2f}",
            f"{median(point['cpu']['speedups']):.2f}",
        ]
        for point in points
    ]
    return ResultTable("Rounds, by branches", header, rows)


def format_report(result: Mapping[str, Any], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    parts = [
        f"{result['model']}, float32; {result['prompt']} prompt tokens that all branches share, {result['new']} new "
        f"ones of each branch. Medians of {result['repeats']} runs of each, in turns, in seconds of a clock. A round "
        "is what a run of all tokens takes longer than a run of one, over the rounds; *prompt* is the run of one. "
        "*CPU*: seconds of whole runs on all cores together.",
        make_table(result["points"]).markdown_section(),
    ]
    title = "The compiled decoder beside the eager one"
    return join_report(title, command, parts, machine=result["machine"], figures=result)

"""Measures decoders of a CPU side by side, compiled and eager: rounds of decoding, and prompts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import BranchWorkload, run_ours
from reason.bench.puppet import find_shape
from reason.bench.report import join_report
from reason.runs.tables import ResultTable

KINDS = ("compiled", "eager", "compiled:bfloat16", "eager:bfloat16")
"""A decoder, in float32 or in the dtype that it names."""

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
    whole: defaultdict[str, list[DecoderSeconds]] = field(default_factory=lambda: defaultdict(list))
    first: defaultdict[str, list[DecoderSeconds]] = field(default_factory=lambda: defaultdict(list))

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
        """Returns medians by decoder, and `slower`: the ratios to the first of neighbouring runs, ascending."""
        parts: dict[str, Callable[[str], list[float]]] = {
            "round": self.round_seconds, "prompt": self.prompt_seconds, "cpu": self.cpu_seconds,
        }  # fmt: skip
        result: dict[str, Any] = {"branches": self.branches}
        first = next(iter(self.whole))
        for name, seconds in parts.items():
            result[name] = {
                kind: {
                    "median": median(seconds(kind)),
                    "slower": sorted(a / b for a, b in zip(seconds(kind), seconds(first), strict=True)),
                }
                for kind in self.whole
            }
        return result


def load_checkpoint(source: str, kinds: Sequence[str]) -> Backends:
    """Loads a checkpoint once for each of these `KINDS`."""
    return {kind: _load(kind, partial(HFBackend.from_pretrained, source)) for kind in kinds}


def make_random_model(shape: str, kinds: Sequence[str]) -> Backends:
    """Makes a random model of a shape of `reason.bench.puppet` for each of these `KINDS`."""

    def make(**settings: Any) -> HFBackend:
        model = find_shape(shape).make_model(torch.device("cpu"), getattr(torch, settings["dtype"]))
        return HFBackend(model, **settings, frees_model=True)

    return {kind: _load(kind, make) for kind in kinds}


def _load(kind: str, load: Callable[..., HFBackend]) -> HFBackend:
    decoder, _, dtype = kind.partition(":")
    return load(device="cpu", dtype=dtype or "float32", decoder=decoder)


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
        "branches", "decoder", "round, ms", "over the first", "lowest", "highest", "prompt, over the first",
        "CPU, over the first",
    )  # fmt: skip
    rows = []
    for point in points:
        for kind, rounds in point["round"].items():
            slower = rounds["slower"]
            others = [median(point[part][kind]["slower"]) for part in ("prompt", "cpu")]
            numbers = [median(slower), slower[0], slower[-1], *others]
            ratios = [f"{number:.2f}" for number in numbers]
            rows.append([str(point["branches"]), kind, f"{1e3 * rounds['median']:,.1f}", *ratios])
    return ResultTable("Rounds, by branches", header, rows)


def format_report(result: Mapping[str, Any], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    parts = [
        f"{result['model']}, float32 where no dtype is named; {result['prompt']} prompt tokens that all branches "
        f"share, {result['new']} new ones of each branch. Medians of {result['repeats']} runs of each, in turns, in "
        "seconds of a clock, and of the ratios to the first decoder's run of the same turn. A round is what a run of "
        "all tokens takes longer than a run of one, over the rounds; *prompt* is the run of one. *CPU*: seconds of "
        "whole runs on all cores together.",
        make_table(result["points"]).markdown_section(),
    ]
    return join_report("Decoders of a CPU side by side", command, parts, machine=result["machine"], figures=result)

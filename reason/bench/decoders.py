"""Measures whole runs of the local engine with the compiled decoder beside the same runs with the eager one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import BranchWorkload, run_ours


@dataclass(frozen=True)
class DecoderComparison:
    """CPU seconds of the process for the runs of one workload, by decoder, in the order they were made."""

    branches: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"compiled": [], "eager": []})

    @property
    def speedups(self) -> list[float]:
        """Eager over compiled, of neighbouring runs, ascending."""
        pairs = zip(self.seconds["compiled"], self.seconds["eager"], strict=True)
        return sorted(eager / compiled for compiled, eager in pairs)

    def to_json(self) -> dict[str, object]:
        """Returns the medians and all ratios."""
        medians = {kind: median(values) for kind, values in self.seconds.items()}
        ratios = self.speedups
        return {"branches": self.branches, "cpu_s": medians, "median_speedup": median(ratios), "speedups": ratios}


def compare_decoders(
    source: str, *, branches: Sequence[int], prompt: int, new: int, repeats: int
) -> Iterator[DecoderComparison]:
    """Yields a comparison per number of branches; the runs alternate, after one pair that is not counted."""
    backends = {
        kind: HFBackend.from_pretrained(source, device="cpu", dtype="float32", decoder=kind)
        for kind in ("compiled", "eager")
    }
    tokens = tuple(number * 37 % backends["eager"].vocab_size for number in range(prompt))
    for count in branches:
        workload, comparison = BranchWorkload(tokens, new, count), DecoderComparison(count)
        for repeat in range(-1, repeats):
            for kind, backend in backends.items():
                begin = time.process_time()
                run_ours(backend, workload)
                if repeat >= 0:
                    comparison.seconds[kind].append(time.process_time() - begin)
        yield comparison

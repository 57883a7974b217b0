"""Decodes a workload with a fresh engine and drafter, and reports acceptance and speed."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field
from statistics import fmean, median

from decoding.core import Tokens, Usage
from decoding.engine import LocalEngine
from decoding.round import Speculation
from decoding.stats import EngineStats
from reason.bench.workload import SpeculationTarget, Workload


@dataclass(frozen=True)
class SpeculationRun:
    """The generations of a workload, in the order of its requests, and the statistics of the engine."""

    workload: Workload
    seconds: float
    usages: tuple[Usage, ...]
    outputs: tuple[Tokens, ...]
    stats: EngineStats

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second."""
        return sum(self.usages, Usage()).tokens / self.seconds

    @property
    def nodes_per_forward(self) -> float:
        """Draft nodes verified per forward pass of a branch."""
        total = sum(self.usages, Usage())
        return total.drafted / total.forwards

    def by_family(self, *, without: int | None = None) -> dict[str, float]:
        """Tokens per forward pass of a branch by family, the bonus token included; without trajectory `without`."""
        sums: dict[str, Usage] = {}
        for i, (family, usage) in enumerate(zip(self.workload.families, self.usages, strict=True)):
            if i % self.workload.trajectories != without:
                sums[family] = sums.get(family, Usage()) + usage
        return {family: usage.tokens / usage.forwards for family, usage in sums.items()}

    @property
    def tokens_per_forward(self) -> float:
        """Mean over the families, so that families with long texts do not weigh more than others."""
        return fmean(self.by_family().values())

    @property
    def drafting_share(self) -> float:
        """Share of the time spent on drafting and on updating the drafter."""
        return self.stats.seconds_drafting / self.seconds

    def time_shares(self) -> dict[str, float]:
        """See `divide_seconds`."""
        return divide_seconds(self.stats, self.seconds)

    def count_differing(self, other: SpeculationRun) -> int:
        """Number of trajectories that differ from those of another run in any token."""
        return sum(mine != theirs for mine, theirs in zip(self.outputs, other.outputs, strict=True))


def divide_seconds(stats: EngineStats, seconds: float) -> dict[str, float]:
    """Returns parts of a wall clock, as fractions; what is left is bookkeeping and time outside rounds.

    On a GPU model and sampling are the device's time, and part of the drafting runs beside them.
    """
    parts = {"model": stats.seconds_model, "drafting": stats.seconds_drafting, "sampling": stats.seconds_sampling}
    return {name: part / seconds for name, part in parts.items()}


def run_workload(
    target: SpeculationTarget,
    workload: Workload,
    speculation: Speculation,
    *,
    live: int,
    nodes: int = 0,
    kv_mib: int = 64,
) -> SpeculationRun:
    """Decodes the workload, `live` branches at a time, each with at most `nodes` draft nodes per round.

    The start of the engine is not timed. Prompts are part of the run, and are fed once for all trajectories.
    """
    tokenizer = target.tokenizer
    engine = LocalEngine(
        target.backend,
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
        eos_ids=target.eos_ids,
        kv_bytes=kv_mib << 20,
        max_running_requests=live,
        max_batched_tokens=max(1024, live * (1 + nodes) + 512),
        speculation=target.adapt_speculation(speculation, workload),
        prepares_rounds=True,
    )
    try:
        gc.collect()  # garbage of what came before is not this run's
        begin = time.perf_counter()
        generations = asyncio.run(engine.generate(workload.requests()))
        seconds = time.perf_counter() - begin
        stats = engine.stats
    finally:
        engine.close()
    return SpeculationRun(
        workload, seconds, tuple(each.usage for each in generations), tuple(each.tokens for each in generations), stats
    )


@dataclass(frozen=True)
class AcceptancePoint:
    """Acceptance of one drafter setup at one temperature and number of draft nodes.

    `num_differing` counts trajectories that had to equal those of plain decoding and do not; None if none had to.
    """

    setup: str
    temperature: float
    nodes: int
    run: SpeculationRun
    num_differing: int | None

    def to_json(self) -> dict[str, object]:
        """Returns the numbers of the tables and of the JSON line."""
        return {
            "setup": self.setup,
            "temperature": self.temperature,
            "nodes": self.nodes,
            "tokens_per_forward": self.run.tokens_per_forward,
            "by_family": self.run.by_family(),
            "nodes_per_forward": self.run.nodes_per_forward,
            "num_differing": self.num_differing,
            "trajectories": len(self.run.outputs),
        }


@dataclass
class SpeedRun:
    """All runs of one drafter setup at one temperature and number of live branches, each after a run of plain decoding.

    `num_differing` as in `AcceptancePoint`.
    """

    setup: str
    temperature: float
    live: int
    runs: list[SpeculationRun] = field(default_factory=list)
    plain: list[SpeculationRun] = field(default_factory=list)
    num_differing: int | None = None

    @property
    def speeds(self) -> list[float]:
        """Tokens per second relative to plain decoding just before, one number per repetition."""
        return [run.tokens_per_s / plain.tokens_per_s for run, plain in zip(self.runs, self.plain, strict=True)]

    @property
    def speed(self) -> float:
        """Median of `speeds`."""
        return median(self.speeds)

    def to_json(self) -> dict[str, object]:
        """Returns the numbers of the tables and of the JSON line."""
        return {
            "setup": self.setup,
            "temperature": self.temperature,
            "live": self.live,
            "speed": self.speed,
            "speeds": self.speeds,
            "tokens_per_s": median(run.tokens_per_s for run in self.runs),
            "plain_tokens_per_s": median(run.tokens_per_s for run in self.plain),
            "tokens_per_forward": fmean(run.tokens_per_forward for run in self.runs),
            "by_family": self.runs[-1].by_family(),
            "nodes_per_forward": fmean(run.nodes_per_forward for run in self.runs),
            "drafting_share": median(run.drafting_share for run in self.runs),
            "rounds": median(run.stats.rounds for run in self.runs),
            "time_shares": self.runs[-1].time_shares(),
            "preemptions": max(run.stats.preemptions for run in self.runs),
            "num_differing": self.num_differing,
            "trajectories": sum(len(run.outputs) for run in self.runs),
        }

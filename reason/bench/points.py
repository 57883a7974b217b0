"""What the speculation benchmark keeps: a contender's acceptance at one point, its races beside plain decoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from reason.bench.speculation_run import Run


@dataclass(frozen=True)
class Point:
    """One contender at one temperature and number of nodes.

    `differing` counts trajectories that should be those of plain decoding and are not; None if none need be.
    """

    contender: str
    temperature: float
    nodes: int
    run: Run
    differing: int | None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for tables and the JSON line."""
        return {
            "contender": self.contender,
            "temperature": self.temperature,
            "nodes": self.nodes,
            "tokens_per_forward": self.run.tokens_per_forward,
            "by_family": self.run.by_family(),
            "nodes_per_forward": self.run.nodes_per_forward,
            "differing": self.differing,
            "trajectories": len(self.run.outputs),
        }


@dataclass
class Race:
    """All runs of one contender at one temperature and number of live branches, each with the plain run just before it.

    `differing` counts trajectories as in `Point`.
    """

    contender: str
    temperature: float
    live: int
    runs: list[Run] = field(default_factory=list)
    plain: list[Run] = field(default_factory=list)
    differing: int | None = None

    @property
    def speeds(self) -> list[float]:
        """Tokens per second relative to the plain run beside, for each repetition."""
        return [mine.rate / plain.rate for mine, plain in zip(self.runs, self.plain, strict=True)]

    @property
    def speed(self) -> float:
        """The median of them."""
        return median(self.speeds)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for tables and the JSON line."""
        return {
            "contender": self.contender,
            "temperature": self.temperature,
            "live": self.live,
            "speed": self.speed,
            "speeds": self.speeds,
            "tokens_per_s": median(run.rate for run in self.runs),
            "plain_tokens_per_s": median(run.rate for run in self.plain),
            "tokens_per_forward": fmean(run.tokens_per_forward for run in self.runs),
            "by_family": self.runs[-1].by_family(),
            "nodes_per_forward": fmean(run.nodes_per_forward for run in self.runs),
            "drafting": median(run.drafting for run in self.runs),
            "preemptions": max(run.stats.preemptions for run in self.runs),
            "differing": self.differing,
            "trajectories": sum(len(run.outputs) for run in self.runs),
        }

"""One run: a workload decoded by a fresh engine with a fresh drafter, and what came of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import fmean

from decoding.core import Spent, Tokens
from decoding.engine import LocalEngine
from decoding.round import Speculation
from decoding.stats import EngineStats
from reason.bench.workload import Target, Workload


@dataclass(frozen=True)
class Run:
    """A workload's generations, in the order of its requests, and the engine's own account."""

    work: Workload
    seconds: float
    spent: tuple[Spent, ...]
    outputs: tuple[Tokens, ...]
    stats: EngineStats

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(self.spent, Spent()).tokens / self.seconds

    @property
    def nodes_per_forward(self) -> float:
        """Draft nodes fed with each pass of a branch."""
        everything = sum(self.spent, Spent())
        return everything.drafted / everything.forwards

    def by_family(self, *, without: int | None = None) -> dict[str, float]:
        """Tokens per forward pass of a branch, the bonus token included; all trajectories but number `without`."""
        sums: dict[str, Spent] = {}
        for i, (family, spent) in enumerate(zip(self.work.families, self.spent, strict=True)):
            if i % self.work.trajectories != without:
                sums[family] = sums.get(family, Spent()) + spent
        return {family: spent.tokens / spent.forwards for family, spent in sums.items()}

    @property
    def tokens_per_forward(self) -> float:
        """Averaged over the families, so that wordy ones count no more than others."""
        return fmean(self.by_family().values())

    @property
    def drafting(self) -> float:
        """Share of the time spent on drafting and learning."""
        return self.stats.seconds_drafting / self.seconds

    def differing(self, other: Run) -> int:
        """Trajectories that are not, token for token, those of another run."""
        return sum(mine != theirs for mine, theirs in zip(self.outputs, other.outputs, strict=True))


def run(target: Target, work: Workload, parts: Speculation, *, live: int, nodes: int = 0, kv_mib: int = 64) -> Run:
    """Decodes the workload, `live` branches at a time; rounds have room for `nodes` draft nodes for each of them.

    The engine's start is not timed. Prompts are part of the run, and are fed once for all trajectories.
    """
    tokenizer = target.tokenizer
    engine = LocalEngine(
        target.backend,
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
        eos_ids=target.ends,
        kv_bytes=kv_mib << 20,
        max_running=live,
        max_rows=max(1024, live * (1 + nodes) + 512),
        speculation=parts,
    )
    try:
        begin = time.perf_counter()
        all_done = asyncio.run(engine.generate(work.requests()))
        seconds = time.perf_counter() - begin
        stats = engine.stats
    finally:
        engine.close()
    return Run(work, seconds, tuple(done.spent for done in all_done), tuple(done.tokens for done in all_done), stats)

"""States the least seconds of a whole workload on this machine, to explain how far engines are from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from reason.bench.baselines import BranchWorkload
from reason.bench.roofline import measure_roofline

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class WorkloadLimit:
    """Least seconds of the prompt, read once, and of a round; which of products and memory makes a round that long."""

    prompt_s: float
    round_s: float
    bound: str
    rounds: int

    @property
    def seconds(self) -> float:
        return self.prompt_s + self.rounds * self.round_s


def measure_limit(config: PretrainedConfig, workload: BranchWorkload, dtype: torch.dtype) -> WorkloadLimit:
    """Measures the limit with the threads that torch has now; see `measure_roofline`."""
    length, cpu = len(workload.prompt), torch.device("cpu")
    half = workload.new // 2  # private keys that a row sees on average
    one_round = measure_roofline(
        config, branches=workload.branches, prompt=length, private=half, dtype=dtype, device=cpu
    )
    # a row of the prompt sees half of it on average, and rows share all keys; the last one alone needs logits
    prompt = measure_roofline(
        config, branches=length, prompt=length // 2, private=0, dtype=dtype, device=cpu, head_rows=1
    )
    bound = "products" if one_round.products_s >= one_round.memory_s else "memory"
    return WorkloadLimit(prompt.seconds, one_round.seconds, bound, workload.new - 1)

"""Measures the sampler beside the plain definition: the noise of every id, and a sort of the vocabulary for filters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from decoding.core import SamplingParams
from decoding.noise import gumbel_noise
from decoding.sampler import sample_tokens
from decoding.sampling_batch import SamplingBatch

SETTINGS = {
    "temperature 1": SamplingParams(),
    "temperature 0.6": SamplingParams(temperature=0.6),
    "top_p 0.95": SamplingParams(temperature=0.6, top_p=0.95),
    "top_k 20, top_p 0.95": SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
    "min_p 0.05": SamplingParams(min_p=0.05),
}


@dataclass(frozen=True)
class SamplingComparison:
    """Milliseconds to sample a batch, and the ratios of neighbouring runs, ascending."""

    rows: int
    setting: str
    ms: float
    definition_ms: float
    speedups: list[float]
    equal_tokens: int

    def to_json(self) -> dict[str, object]:
        """Returns all fields."""
        return asdict(self)


def compare_sampling(rows: Sequence[int], vocab_size: int, repeats: int) -> Iterator[SamplingComparison]:
    """Yields a comparison per number of rows and setting. The logits are peaked as those of a language model are."""
    generator = torch.Generator().manual_seed(0)
    for count in rows:
        # a few likely ids over a wide flat rest
        logits = torch.randn(count, vocab_size, generator=generator) * 2.5
        logits[:, : min(40, vocab_size)] += 12
        for setting, params in SETTINGS.items():
            batch = SamplingBatch.from_params([params] * count, range(count), range(count))
            pairs: list[tuple[float, float]] = []
            for repeat in range(-1, repeats):
                pair = _time(sample_tokens, logits, batch), _time(sample_by_definition, logits, batch)
                if repeat >= 0:  # the first one compiles
                    pairs.append(pair)
            equal = int((sample_tokens(logits, batch) == sample_by_definition(logits, batch)).sum())
            ours, plain = (median(pair[i] for pair in pairs) for i in (0, 1))
            ratios = sorted(definition / mine for mine, definition in pairs)
            yield SamplingComparison(count, setting, ours, plain, ratios, equal)


def sample_by_definition(logits_TV: Tensor, batch: SamplingBatch) -> Tensor:
    """Returns argmax(log p + noise) over whole rows; p after a stable sort where there are filters."""
    scores_TV = logits_TV * torch.from_numpy(batch.inverse_temperature)[:, None]
    if batch.is_filtered.any():
        values_TV, ids_TV = scores_TV.sort(dim=-1, descending=True, stable=True)
        rank_V = torch.arange(values_TV.shape[1])
        limit_T1 = torch.from_numpy(np.where(batch.top_k_T > 0, batch.top_k_T, len(rank_V)))[:, None]
        values_TV = values_TV.masked_fill(rank_V >= limit_T1, -torch.inf)
        p_TV = values_TV.softmax(-1)
        is_late_TV = p_TV.cumsum(-1) - p_TV >= torch.from_numpy(batch.top_p_T)[:, None]
        is_weak_TV = p_TV < torch.from_numpy(batch.min_p_T)[:, None] * p_TV[:, :1]
        values_TV = values_TV.masked_fill((is_late_TV | is_weak_TV) & (rank_V > 0), -torch.inf)
        scores_TV = torch.full_like(scores_TV, -torch.inf).scatter_(1, ids_TV, values_TV)
    return (scores_TV + gumbel_noise(torch.from_numpy(batch.keys_T2), torch.arange(scores_TV.shape[1]))).argmax(-1)


def _time(sample: Callable[[Tensor, SamplingBatch], Tensor], logits_TV: Tensor, batch: SamplingBatch) -> float:
    begin = time.perf_counter()
    sample(logits_TV, batch)
    return 1e3 * (time.perf_counter() - begin)

"""Measures what a token costs the engine's own code at the beginning and at the end of a long thought."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoding.core import GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.model.backend import TokenBatch
from decoding.model.segments import SegmentTiles
from decoding.round import Speculation
from decoding.stats import DecoderKind

VOCAB_SIZE = 256
_PROMPT = 64
_POLL_S = 0.002


class FreeModel:
    """A backend that costs next to nothing at any length: the next token depends on the last one alone.

    It reads no KV, so that what grows with the context is the engine's own work.
    """

    vocab_size = VOCAB_SIZE
    max_positions = 1 << 20
    kv_bytes_per_token = 1
    attention_seconds = 0.0
    segment_tiles: SegmentTiles | None = None
    decoder_kind: DecoderKind = "eager"

    def __init__(self, seed: int = 0) -> None:
        likely = np.random.default_rng(seed).permutation(VOCAB_SIZE)
        logits_VV = np.zeros((VOCAB_SIZE, VOCAB_SIZE), dtype=np.float32)
        logits_VV[np.arange(VOCAB_SIZE), likely] = 7.0  # the likely one has four fifths of the probability
        self._logits_VV = torch.from_numpy(logits_VV)

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Returns an empty tensor: no KV is stored."""
        del capacity
        return torch.empty(0)

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """Returns the tokens themselves, `[W, 1]`."""
        del pool
        return torch.from_numpy(batch.tokens_T[batch.logits_indices])[:, None]

    def apply_head(self, hidden: Tensor) -> Tensor:
        """Returns the logits after each token, `[W, VOCAB_SIZE]`."""
        return self._logits_VV[hidden[:, 0]]


@dataclass(frozen=True)
class ContextCost:
    """Microseconds per round of one branch while contexts have these lengths, and tokens of a branch per round."""

    context: int
    round_us: float
    tokens_per_round: float

    @property
    def token_us(self) -> float:
        """Microseconds per token of one branch."""
        return self.round_us / self.tokens_per_round

    def to_json(self) -> dict[str, float]:
        """Returns all figures, rounded."""
        return {name: round(value, 2) for name, value in {**vars(self), "token_us": self.token_us}.items()}


def measure_context_cost(
    speculation: Speculation | None, num_branches: int, contexts: Sequence[int]
) -> list[ContextCost]:
    """Generates `num_branches` texts of one problem up to the longest context; returns the cost around each of them.

    The cost at a length is that of the eighth of it before it. All branches grow alike, up to accepted drafts.
    """
    longest = max(contexts)
    engine = LocalEngine(
        FreeModel(),
        decode=lambda ids: "".join(map(chr, ids)),
        kv_bytes=num_branches * (longest + 2 * _PROMPT) + (1 << 14),
        speculation=speculation,
    )
    params = SamplingParams(max_tokens=longest - _PROMPT, stop=("\U0001f600",))  # a stop string that never comes
    requests = [
        GenerationRequest(prefix=tuple(range(_PROMPT)), params=params, seed=seed, group="p")
        for seed in range(num_branches)
    ]
    try:
        points = asyncio.run(_watch(engine, requests))
    finally:
        engine.close()
    tokens, rounds, seconds = np.array(points).T
    context = _PROMPT + tokens / num_branches
    costs = []
    for length in contexts:
        first, last = np.searchsorted(context, [length * 7 / 8, length])
        last = min(last, len(context) - 1)
        first = min(first, last - 1)  # a quick run has few points
        new_rounds, gaps = np.diff(rounds[first : last + 1]), np.diff(seconds[first : last + 1])
        # the median: other work on the machine makes some rounds much longer
        round_seconds = np.median(gaps[new_rounds > 0] / new_rounds[new_rounds > 0])
        costs.append(
            ContextCost(
                length,
                1e6 * float(round_seconds) / num_branches,
                float((tokens[last] - tokens[first]) / new_rounds.sum() / num_branches),
            )
        )
    return costs


async def _watch(engine: LocalEngine, requests: Sequence[GenerationRequest]) -> list[tuple[int, int, float]]:
    """Runs the requests; returns (tokens, rounds, seconds) every few milliseconds."""
    points = []
    work = asyncio.create_task(engine.generate(requests))
    while not work.done():
        stats = engine.stats
        points.append((stats.tokens, stats.rounds, time.perf_counter()))
        await asyncio.sleep(_POLL_S)
    await work
    return points

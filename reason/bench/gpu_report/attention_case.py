"""Random rounds over a real prefix cache, with the attention of the kernels and that of a softmax in float64.

Slots that no row sees hold NaN, and so does all memory that a kernel is handed to write: what reads or leaves a place
that it should not, shows.

Shapes: T rows, H query heads, K key-value heads, D head size, R rows and S keys of one input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoding.core import GenerationRequest, SamplingParams
from decoding.device_arrays import copy_arrays
from decoding.kv.kv_cache import KVCache
from decoding.model.batch import EMPTY_DRAFT, SequenceInput, ancestor_mask, pack_segments
from decoding.model.segment_attention import SegmentAttention, list_arrays, pick_tiles
from decoding.model.segments import SegmentTiles
from decoding.request import Request
from reason.bench.round_contexts import ContextSource, draw_drafts, open_cache, place_requests

RequestInputs = Sequence[SequenceInput[Request]]


@dataclass(frozen=True)
class HeadSizes:
    """The heads of a model: key-value heads, queries that share one, and their size."""

    model: str
    kv_heads: int
    queries: int
    size: int


def draw_inputs(source: ContextSource, nodes: int, chunk: int, seed: int) -> tuple[KVCache, RequestInputs]:
    """Returns branches that decode with drafts, and of each fourth one's prefix a new continuation of `chunk` tokens.

    Half of a continuation has its KV already, as in a prompt that is read in several passes.
    """
    rng = np.random.default_rng(seed)
    contexts = source.draw_contexts(rng)
    drafts = draw_drafts(len(contexts), nodes, rng) if nodes else [EMPTY_DRAFT] * len(contexts)
    kv = open_cache(contexts, len(contexts) * (nodes + chunk + 1))
    params = SamplingParams(max_tokens=max(map(len, contexts)) + nodes + 2)
    inputs = []
    for request, draft in zip(place_requests(contexts, kv, params), drafts, strict=True):
        inputs.append(SequenceInput(request, 1, kv.allocate(1 + len(draft)), 0, draft))
    for number, context in enumerate(contexts[::4]):
        text = (*context.prefix, *rng.integers(300, 600, chunk).tolist())
        request = Request(GenerationRequest(prefix=text, params=params, seed=0, group="chunk"))
        request.arrival = len(contexts) + number
        kv.acquire(request, kv.match_prefix(request))
        request.append_slots(kv.allocate(chunk // 2))
        fed = request.num_uncomputed
        inputs.append(SequenceInput(request, fed, kv.allocate(fed), 0))
    return kv, inputs


class AttentionCase:
    """A random round with random queries, keys and values."""

    def __init__(
        self,
        heads: HeadSizes,
        dtype: torch.dtype,
        device: torch.device,
        kv: KVCache,
        inputs: RequestInputs,
        tiles: SegmentTiles | None = None,
    ) -> None:
        self.heads, self.inputs, self.device = heads, inputs, device
        self.scale = heads.size**-0.5
        self.tiles = tiles or pick_tiles(heads.queries, heads.size, dtype)
        generator = torch.Generator(device).manual_seed(0)
        shape = (heads.kv_heads, kv.pool.capacity + 1, 2 * heads.size)
        self.kv = torch.full(shape, torch.nan, dtype=dtype, device=device)
        slots = torch.from_numpy(np.unique(np.concatenate([_list_slots(item) for item in inputs]))).to(device)
        numbers = torch.randn((shape[0], len(slots), shape[2]), generator=generator, device=device) + 0.5
        self.kv[:, slots] = numbers.to(dtype)
        self.queries = {
            item.sequence.arrival: 3
            * torch.randn(
                (item.num_tokens, heads.kv_heads * heads.queries, heads.size), generator=generator, device=device
            ).to(dtype)
            for item in inputs
        }

    def attend(self, inputs: RequestInputs) -> dict[int, Tensor]:
        """Returns what the kernels compute for these inputs as one batch, `[R, H * D]` by arrival."""
        batch, ordered = pack_segments(inputs, self.tiles)
        assert batch.segments is not None
        arrays = copy_arrays(list_arrays(batch.segments), self.device)
        attention = SegmentAttention.from_plan(batch.segments, arrays, self.scale)
        queries = torch.cat([self.queries[item.sequence.arrival] for item in ordered])
        # in a layer the rows of queries lie between those of the keys
        strided = torch.cat([queries, torch.full_like(queries[:, :1], torch.nan)], dim=1)
        with poisoned_memory():
            out = attention.attend(strided[:, :-1], self.kv)
        parts = torch.split(out, [item.num_tokens for item in ordered])
        return {item.sequence.arrival: part for item, part in zip(ordered, parts, strict=True)}

    def attend_densely(self, item: SequenceInput[Request]) -> Tensor:
        """Returns a softmax over all keys that each row sees, `[R, H * D]` in float64."""
        k_SD, v_SD = self.kv[:, torch.from_numpy(_list_slots(item)).to(self.device)].double().chunk(2, dim=-1)
        k, v = (part.repeat_interleave(self.heads.queries, 0) for part in (k_SD, v_SD))
        q = self.queries[item.sequence.arrival].double().transpose(0, 1)
        scores = q @ k.transpose(1, 2) * self.scale
        is_visible_RS = torch.from_numpy(_list_visible(item)).to(self.device)
        weights = scores.masked_fill(~is_visible_RS, -torch.inf).softmax(-1)
        expected: Tensor = (weights @ v).transpose(0, 1).reshape(item.num_tokens, -1)
        return expected

    def find_error(self, tolerance: float) -> float:
        """Returns the largest difference over `tolerance * (1 + |expected|)`; infinity where there is a NaN."""
        outputs, worst = self.attend(self.inputs), 0.0
        for item in self.inputs:
            expected = self.attend_densely(item)
            got = outputs[item.sequence.arrival].double()
            error = float(((got - expected).abs() / (tolerance * (1 + expected.abs()))).max())
            worst = max(worst, error if error == error else float("inf"))
        return worst


def _list_slots(item: SequenceInput[Request]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([item.sequence.slots, item.slots])


def _list_visible(item: SequenceInput[Request]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Returns which keys each row sees, bool `[R, S]`."""
    before, rows, committed = len(item.sequence.slots), item.num_tokens, item.num_committed
    last = before + np.minimum(np.arange(rows), committed - 1)
    visible = np.arange(before + rows) <= last[:, None]
    visible[committed:, before + committed :] = ancestor_mask(item.draft)
    return visible


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Makes PyTorch fill every new tensor with NaN before it is written."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)

"""Traces one round of the engine on the meta device: what it would launch, move, copy and wait for on a card.

The round is `RoundRunner.run_round` itself, over a real KV cache and the eager decoder. Only the model's values, the
drafter and the lengths of the contexts are made up, so a change of the engine changes the trace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import CodeType

import numpy as np
import torch

from decoding.core import SamplingParams
from decoding.kv.kv_cache import KVCache
from decoding.model.backend import Backend
from decoding.model.fused_decoder import FusedDecoder
from decoding.request import Request
from decoding.round import RoundRunner, Speculation
from decoding.scheduler import Scheduler
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback
from decoding.speculation.target_logits import copy_to_host
from decoding.stats import EngineStats
from reason.bench.cards import Card
from reason.bench.meta_model import MetaBackend
from reason.bench.meta_trace import CopyRecord, DeviceTrace, KernelRecord
from reason.bench.round_contexts import NO_STOP, BranchContext, ContextSource, draw_drafts, open_cache, place_requests

PHASES = ("copy in", "layers", "head", "sampling", "copy out")
_FEEDBACK_K = 10  # what STAND's table reads after each row
_MAX_BATCHED_TOKENS = 1 << 16  # no draft is cut


def _code_of(function: Callable[..., object]) -> CodeType:
    code = inspect.unwrap(function).__code__
    assert isinstance(code, CodeType)
    return code


_PHASE_OF = {
    _code_of(FusedDecoder.run_batch): "copy in",
    _code_of(FusedDecoder.forward): "layers",
    _code_of(MetaBackend.apply_head): "head",
    _code_of(copy_to_host): "copy out",
}


@dataclass(frozen=True)
class DrawnDrafts:
    """Implements `Drafter` with drafts that are given, one per branch in order."""

    drafts: Sequence[Draft]
    feedback_k: int = _FEEDBACK_K

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        """Returns the drafts, whatever the plan."""
        return list(self.drafts)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class PhaseCost:
    """Sums over the operators of a phase; `device_s` is each operator's minimum time on a card, summed."""

    launches: int
    bytes_moved: int
    flops: int
    device_s: float


@dataclass(frozen=True)
class RoundTrace:
    """What one round does.

    rows            tokens fed; each gets logits
    resident        KV tokens that the round reads, shared ones once, its own included
    kv_bytes        of one of them
    weight_bytes    weights that a round needs, each once
    minimum_flops   of a round's products at least: no padding, no masked key
    """

    kernels: tuple[KernelRecord, ...]
    copies: tuple[CopyRecord, ...]
    layers: int
    branches: int
    rows: int
    resident: int
    kv_bytes: int
    weight_bytes: int
    minimum_flops: int

    @property
    def launches(self) -> int:
        """Kernels of the whole round."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def layer_launches(self) -> float:
        """Kernels a layer; embedding, final norm and the choice of the last rows are shared out among them."""
        return sum(kernel.launches for kernel in self.kernels if kernel.phase == "layers") / self.layers

    @property
    def bytes_moved(self) -> int:
        """Bytes that the kernels read and write."""
        return sum(kernel.bytes_moved for kernel in self.kernels)

    @property
    def weight_bytes_read(self) -> int:
        """Of these, bytes of weights read."""
        return sum(kernel.weight_bytes for kernel in self.kernels)

    @property
    def copies_in(self) -> list[CopyRecord]:
        """Copies from the host to the device."""
        return [copy for copy in self.copies if not copy.to_host]

    @property
    def copies_out(self) -> list[CopyRecord]:
        """Copies from the device to the host."""
        return [copy for copy in self.copies if copy.to_host]

    @property
    def waits(self) -> int:
        """How often the host waits for the device."""
        return sum(copy.waits for copy in self.copies)

    def sum_phase(self, phase: str, card: Card) -> PhaseCost:
        """Returns the sums of a phase on a card."""
        kernels = [kernel for kernel in self.kernels if kernel.phase == phase]
        return PhaseCost(
            sum(kernel.launches for kernel in kernels),
            sum(kernel.bytes_moved for kernel in kernels),
            sum(kernel.flops for kernel in kernels),
            sum(card.minimum_seconds(kernel.bytes_moved, kernel.flops) for kernel in kernels),
        )

    def device_seconds(self, card: Card) -> float:
        """Returns the sum over the kernels of the time that each takes at least."""
        return sum(card.minimum_seconds(kernel.bytes_moved, kernel.flops) for kernel in self.kernels)

    def estimate_seconds(self, card: Card, launch_us: float) -> float:
        """Returns the time of the kernels or that of their launches, which run side by side, whichever is longer."""
        return max(self.device_seconds(card), self.launches * launch_us * 1e-6)

    def roofline_seconds(self, card: Card) -> float:
        """Returns the minimum: weights and each KV slot read once, or the products without padding."""
        return card.minimum_seconds(self.weight_bytes + self.resident * self.kv_bytes, self.minimum_flops)


def trace_source(
    backend: MetaBackend, source: ContextSource, *, nodes: int = 0, params: SamplingParams | None = None, seed: int = 0
) -> RoundTrace:
    """Traces a round of drawn contexts, with `nodes` draft nodes per branch on average."""
    rng = np.random.default_rng(seed)
    contexts = source.draw_contexts(rng)
    drafts = draw_drafts(len(contexts), nodes, rng) if nodes else ()
    return trace_round(backend, contexts, drafts, params)


def trace_round(
    backend: MetaBackend,
    contexts: Sequence[BranchContext],
    drafts: Sequence[Draft] = (),
    params: SamplingParams | None = None,
) -> RoundTrace:
    """Traces one round of branches that decode; without drafts each feeds one token.

    It is their second: the first one sends the slots of their contexts, and no node of a draft is accepted.
    """
    num_nodes = sum(map(len, drafts))
    kv = open_cache(contexts, num_nodes)
    requests = place_requests(contexts, kv, lengthen_params(params or SamplingParams(), contexts))
    runner = make_runner(backend, kv, requests, drafts)
    weights = list(backend.iter_round_weights())
    with torch.inference_mode():
        # traced too, as only a trace gives values for what is copied to the host
        with DeviceTrace(_PHASE_OF, "sampling"):
            ended = list(runner.run_round())
        resident = kv.num_pinned + len(requests) + num_nodes
        lengths = [len(request.tokens) for request in requests]
        with DeviceTrace(_PHASE_OF, "sampling", weights) as trace:
            ended += runner.run_round()
    assert not ended, "a branch ended in the traced rounds"
    rows = len(requests) + num_nodes
    decoder = backend.decoder
    row_contexts = [
        length + depth
        for length, draft in zip(lengths, drafts or [Draft()] * len(lengths), strict=True)
        for depth in (0, *draft.depths)
    ]
    attention = 4 * decoder.num_layers * decoder.num_heads * decoder.head_size * sum(row_contexts)
    return RoundTrace(
        kernels=tuple(trace.kernels),
        copies=tuple(trace.copies),
        layers=decoder.num_layers,
        branches=len(requests),
        rows=rows,
        resident=resident,
        kv_bytes=backend.kv_bytes_per_token,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
        minimum_flops=2 * rows * (decoder.num_weights + backend.head.numel()) + attention,
    )


def lengthen_params(params: SamplingParams, contexts: Sequence[BranchContext]) -> SamplingParams:
    """Returns the parameters with room for more tokens than any context and any draft."""
    return replace(params, max_tokens=max(map(len, contexts)) + _MAX_BATCHED_TOKENS)


def make_runner(backend: Backend, kv: KVCache, requests: Sequence[Request], drafts: Sequence[Draft]) -> RoundRunner:
    """Returns the runner of rounds in which these requests decode, with these drafts, one each, in every round."""
    scheduler: Scheduler[Request] = Scheduler(
        kv, max_running_requests=len(requests), max_batched_tokens=_MAX_BATCHED_TOKENS
    )
    scheduler.running.extend(requests)
    speculation = Speculation()
    if drafts:
        nodes = -(-sum(map(len, drafts)) // len(drafts))
        speculation = Speculation(DrawnDrafts(drafts), FixedController(nodes))
    return RoundRunner(backend, kv, scheduler, speculation, NO_STOP, EngineStats())

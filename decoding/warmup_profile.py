"""Measures rounds of several sizes on this machine at start-up, so that a cost curve starts right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from decoding.core import GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.model.backend import Backend
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback, RoundCost

_BATCH_SHAPES = ((1, 0), (1, 4), (1, 16), (8, 0), (8, 4), (8, 16), (32, 0), (32, 4))  # branches, draft nodes of each
_PROMPTS = (32, 160)  # tokens; the second for plain rounds only, to tell context from branches
_ROUNDS = 4  # of each size; the first of them is not counted


@dataclass
class _RandomDrafter:
    """Drafts arbitrary tokens, to time rounds with draft tokens at start-up."""

    nodes: int
    feedback_k: int

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        # Two nodes per level: half as deep as a chain, not as flat as a fan.
        parents = tuple(-1 if node < 2 else node - 2 for node in range(self.nodes))
        return [Draft(tuple(range(self.nodes)), parents) for _ in branches]

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class _CostRecorder(FixedController):
    """Records the cost of every round."""

    costs: list[RoundCost] = field(default_factory=list)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        if cost is not None:
            self.costs.append(cost)


def profile_rounds(backend: Backend, *, feedback_k: int = 10) -> list[RoundCost]:
    """Measures rounds with 1 to 32 branches and up to 16 draft nodes each; takes the time of some fifty rounds.

    Must not be called where an event loop is running in the same thread.
    """
    return [
        cost
        for branches, nodes in _BATCH_SHAPES
        for prompt in _PROMPTS
        if nodes < backend.vocab_size and not (nodes and prompt != _PROMPTS[0])
        for cost in _time_rounds(backend, branches, nodes, prompt, feedback_k)
    ]


def _time_rounds(backend: Backend, branches: int, nodes: int, length: int, feedback_k: int) -> list[RoundCost]:
    recorder = _CostRecorder(nodes)
    prompt = tuple(at % backend.vocab_size for at in range(length))
    # The KV cache must hold all of it, or preemptions would be timed.
    kv_bytes = (length + branches * (_ROUNDS + 1 + nodes) + 64 * branches) * backend.kv_bytes_per_token
    engine = LocalEngine(
        backend,
        decode=lambda tokens: "",
        kv_bytes=kv_bytes,
        speculation=Speculation(_RandomDrafter(nodes, feedback_k), recorder),
    )
    params = SamplingParams(max_tokens=_ROUNDS + 1 + nodes)
    requests = [GenerationRequest(prefix=prompt, params=params, seed=seed) for seed in range(branches)]

    async def run_rounds() -> None:
        task = asyncio.ensure_future(engine.generate(requests))
        while len(recorder.costs) < _ROUNDS and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    try:
        asyncio.run(run_rounds())
    finally:
        engine.close()
    return recorder.costs[1:_ROUNDS]

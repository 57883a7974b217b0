"""Measures rounds of several sizes on this machine at start-up, so that a cost curve starts right.

On a machine that has not run these sources before, it also compiles the loops of rounds, which takes a minute or more.
Requests wait for that: decoding in another way meanwhile would give other texts, since compiled and eager layers, and
the samplers of both, round differently. Drafts change no text: a single question does not wait for their loops
(`controllers/until_compiled.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from decoding.core import GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.kv.out_of_memory import OutOfMemory
from decoding.model.backend import Backend
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback, RoundCost

log = logging.getLogger(__name__)

_BATCH_SHAPES = ((1, 0), (1, 4), (1, 16), (8, 0), (8, 4), (8, 16), (32, 0), (32, 4))  # branches, draft nodes of each
_PROMPTS = (32, 160)  # tokens; the second for plain rounds only, to tell context from branches
_ROUNDS, _MOST_ROUNDS = 4, 24  # of each size; more than the least of them while these take less than `_SECONDS`
_SECONDS = 0.02
_COMPILED_ROUNDS, _COMPILED_NODES, _COMPILED_TOKENS = 6, 4, 1024


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


def profile_rounds(backend: Backend, *, feedback_k: int = 10, row_counts: Sequence[int] = ()) -> list[RoundCost]:
    """Measures rounds with 1 to 32 branches and up to 16 draft nodes each; takes .02 seconds, or four rounds, for each.

    Where rounds are filled up to `row_counts`, each of them is measured too, with and without drafts. Must not be
    called where an event loop is running in the same thread. Sizes for which there is no memory are left out.

    Raises: OutOfMemory if there is none for a round of one token.
    """
    costs: list[RoundCost] = []
    _time_rounds(backend, *_BATCH_SHAPES[0], _PROMPTS[0], feedback_k)  # the first rounds of all load machine code
    # with drafts a quarter of the rows are branches
    full = [(rows, 0) for rows in row_counts] + [(rows // 4, 3) for rows in row_counts if rows >= 4]
    for branches, nodes in dict.fromkeys([*_BATCH_SHAPES, *full]):
        for prompt in _PROMPTS:
            if nodes >= backend.vocab_size or (nodes and prompt != _PROMPTS[0]):
                continue
            try:
                costs += _time_rounds(backend, branches, nodes, prompt, feedback_k)
            except OutOfMemory:
                if not costs:  # the first is the least of them
                    raise
                log.warning("no memory for rounds of %d branches with %d draft nodes: not timed", branches, nodes)
    return costs


def name_loops(backend: Backend, speculation: Speculation) -> str:
    """Returns a name for the loops that rounds with these parts use: another one where others may be used."""
    parts = (speculation.drafter, *_list_sources(speculation.drafter), speculation.controller, speculation.acceptance)
    return "-".join([backend.decoder_kind, *(type(part).__name__ for part in parts)])


def compile_loops(backend: Backend, speculation: Speculation) -> None:
    """Runs rounds with these parts, so that the loops they use are compiled. *Mutates*: the parts learn from them.

    Must not be called where an event loop is running in the same thread.
    """
    controller = speculation.controller
    if not controller.uses_template:  # those with one always draft; others first see whether that pays
        controller = FixedController(_COMPILED_NODES)
    prompt = tuple(at % min(4, backend.vocab_size) for at in range(_PROMPTS[0]))
    params = SamplingParams(max_tokens=_COMPILED_ROUNDS)
    requests = [GenerationRequest(prefix=prompt, params=params, seed=seed) for seed in range(2)]
    engine = LocalEngine(
        backend,
        decode=lambda tokens: "",
        kv_bytes=_COMPILED_TOKENS * backend.kv_bytes_per_token,
        speculation=Speculation(speculation.drafter, controller, speculation.acceptance),
    )
    try:
        # the second time its own tokens are there to be drafted
        for _ in range(2):
            asyncio.run(engine.generate(requests))
    finally:
        engine.close()


def runs_a_model(drafter: object) -> bool:
    """Returns whether a drafter has a model of its own, of which there should be one."""
    return any(getattr(source, "needs_model", False) for source in _list_sources(drafter))


def _list_sources(drafter: object) -> list[object]:
    source = getattr(drafter, "source", None)
    return [source, *getattr(source, "sources", ())]


def _time_rounds(backend: Backend, branches: int, nodes: int, length: int, feedback_k: int) -> list[RoundCost]:
    """Returns the faster half of some rounds: what else the machine does only makes them slower."""
    recorder = _CostRecorder(nodes)
    prompt = tuple(at % backend.vocab_size for at in range(length))
    # The KV cache must hold all of it, or preemptions would be timed.
    kv_bytes = (length + branches * (_MOST_ROUNDS + 1 + nodes) + 64 * branches) * backend.kv_bytes_per_token
    engine = LocalEngine(
        backend,
        decode=lambda tokens: "",
        kv_bytes=kv_bytes,
        speculation=Speculation(_RandomDrafter(nodes, feedback_k), recorder),
    )
    params = SamplingParams(max_tokens=_MOST_ROUNDS + 1 + nodes)
    requests = [GenerationRequest(prefix=prompt, params=params, seed=seed) for seed in range(branches)]

    async def run_rounds() -> None:
        task = asyncio.ensure_future(engine.generate(requests))
        while not task.done() and _needs_rounds(recorder.costs):
            await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    try:
        asyncio.run(run_rounds())
    finally:
        engine.close()
    counted = recorder.costs[1:_MOST_ROUNDS]  # the first one is slower
    return sorted(counted, key=lambda cost: cost.seconds)[: max(len(counted) // 2, _ROUNDS - 1)]


def _needs_rounds(costs: Sequence[RoundCost]) -> bool:
    return len(costs) < _ROUNDS or (len(costs) < _MOST_ROUNDS and sum(cost.seconds for cost in costs) < _SECONDS)

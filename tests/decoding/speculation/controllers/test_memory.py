"""Rounds hold no more draft bytes than the budget, and drafts are no larger than their speed needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoding.core import Generation
from decoding.model.backend import TokenBatch
from decoding.round import Speculation
from decoding.speculation.controllers.confidence import ConfidenceController
from decoding.speculation.controllers.draft_memory import DraftMemory, MemoryLimited
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.goodput import GoodputController
from decoding.speculation.controllers.memory import MemoryController
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import BatchLoad, Branch, Controller, CostEstimate, DraftPlan, Feedback, RoundCost
from tests.support.draft_sources import OracleSource
from tests.support.engines import make_request, open_engine
from tests.support.fakes import HashBackend
from tests.support.simulated_machine import AMPLE, Machine, branches, simulate, spare

MEMORY = DraftMemory(kv_bytes=1000, vocabulary=100)


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**5))
def test_as_many_nodes_as_fit_and_not_one_more(budget: int, kv: int, vocabulary: int, context: int) -> None:
    memory = DraftMemory(kv, vocabulary, feedback_k=5)
    nodes = memory.count_nodes(budget, context)
    assert memory.round_bytes(nodes, context) <= budget < memory.round_bytes(nodes + 1, context)


def test_the_fewest_nodes_that_keep_the_share_of_the_best_gain() -> None:
    rng, fewer = np.random.default_rng(0), 0
    for _ in range(200):
        count, reach = int(rng.integers(1, 9)), -np.sort(-(rng.random(int(rng.integers(0, 40))) ** 2))
        seconds = float(rng.lognormal(0, 1)) + np.cumsum([0, *rng.lognormal(-3, 2, len(reach))])
        estimate = CostEstimate(seconds, tuple(range(len(reach) + 1)), keep_gain=float(rng.uniform(0.5, 1)))
        rates = [(count + reach[:n].sum()) / seconds[n] for n in range(len(reach) + 1)]
        chosen = estimate.count_worthwhile(reach, count)
        least = rates[0] + estimate.keep_gain * (max(rates) - rates[0])
        assert rates[chosen] >= least - 1e-9
        assert all(rate < least for rate in rates[:chosen])
        assert (chosen == 0) == (max(rates) == rates[0]), "none only where none is best"
        fewer += chosen < replace(estimate, keep_gain=1.0).count_worthwhile(reach, count)
    assert fewer > 50


@dataclass
class NodeRecorder:
    """Another controller, with the nodes and the longest text of every round."""

    controller: Controller
    rounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def uses_template(self) -> bool:
        return self.controller.uses_template

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        self.longest = max((len(branch.tokens) for branch in branches), default=0)
        return self.controller.plan_drafts(branches, load)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        self.rounds.append((sum(len(outcome.draft) for outcome in feedback), self.longest))
        self.controller.observe(feedback, cost)


INNER: dict[str, Controller] = {
    "fixed": FixedController(12),
    "template": TemplateController("token_recycling", nodes=10),
    "goodput": GoodputController(longest=12, width=2),
    "confidence": ConfidenceController(first=0.01),
}


def generate(backend: HashBackend, controller: Controller | None, count: int = 4) -> tuple[list[Generation], int]:
    """Runs branches of one problem; returns them and the tokens that were drafted."""
    drafter = TreeDrafter(OracleSource(HashBackend(32, scale=3.0)), width=3)
    parts = None if controller is None else Speculation(drafter, controller)
    requests = [make_request((1, 2, 3, 4), seed, max_tokens=30, temperature=0.8) for seed in range(count)]
    with open_engine(backend, speculation=parts) as engine:
        return asyncio.run(engine.generate(requests)), engine.stats.drafted


@pytest.mark.parametrize("name", INNER)
def test_no_round_holds_more_than_the_budget_and_texts_stay(name: str) -> None:
    backend, budget_bytes = HashBackend(32, scale=3.0), 4096
    inner = NodeRecorder(INNER[name])
    controller = MemoryController(inner, max_draft_mib=budget_bytes / 2**20)
    done, drafted = generate(backend, controller)
    assert [one.tokens for one in done] == [one.tokens for one in generate(backend, None)[0]]
    memory = DraftMemory(backend.kv_bytes_per_token, backend.vocab_size)
    held = [memory.round_bytes(nodes, longest) for nodes, longest in inner.rounds]
    assert drafted > 20
    assert 0.5 * budget_bytes < max(held) <= budget_bytes
    assert controller.peak_draft_bytes == max(held)
    free = NodeRecorder(INNER[name])
    generate(backend, free)
    assert max(memory.round_bytes(*one) for one in free.rounds) > budget_bytes, "without it rounds hold more"


class MeasuredBackend(HashBackend):
    """Counts the bytes of each round's logits and masks."""

    def __init__(self) -> None:
        super().__init__(32, scale=3.0)
        self.rounds: list[tuple[int, int, int]] = []

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        self.masks = sum(block.find_visible().nbytes for block in batch.blocks)
        self.num_rows = len(batch.tokens_T)
        return super().forward(batch, pool)

    def apply_head(self, hidden: Tensor) -> Tensor:
        logits = super().apply_head(hidden)
        self.rounds.append((self.num_rows, self.masks, logits.nbytes))
        return logits


def test_a_round_holds_at_least_half_of_what_the_model_says_and_not_more() -> None:
    """KV, logits and masks of a branch's rounds; its first round has the prompt."""
    backend = MeasuredBackend()
    inner = NodeRecorder(FixedController(10))
    generate(backend, MemoryController(inner), count=1)
    memory, compared = DraftMemory(backend.kv_bytes_per_token, backend.vocab_size), 0
    for (nodes, longest), (num_rows, masks, logits) in list(zip(inner.rounds, backend.rounds, strict=True))[1:]:
        assert num_rows == 1 + nodes
        if not nodes:  # a round for the last token
            continue
        # less what the round would have without drafts: one row, which attends to the whole text
        held = nodes * backend.kv_bytes_per_token + logits * nodes // num_rows + masks - longest
        assert 0.5 * memory.round_bytes(nodes, longest) <= held + nodes * 40 <= memory.round_bytes(nodes, longest)
        compared += nodes > 4
    assert compared > 2


def test_without_limits_it_is_the_other_controller() -> None:
    for inner in INNER.values():
        controller = MemoryController(inner, keep_gain=1.0)
        controller.set_memory(MEMORY)
        assert isinstance(controller, MemoryLimited)
        assert controller.uses_template == inner.uses_template
        assert controller.plan_drafts(branches(3), AMPLE) == inner.plan_drafts(branches(3), AMPLE)


def test_the_budget_is_for_the_round_and_never_above_what_the_engine_has() -> None:
    controller = MemoryController(FixedController(100), max_draft_mib=MEMORY.round_bytes(7, 3) / 2**20)
    controller.set_memory(MEMORY)
    for count in (1, 3, 7):
        assert controller.plan_drafts(branches(count), AMPLE).max_total == 7
    assert controller.plan_drafts(branches(3), spare(5)).max_total == 5
    tiny = MemoryController(FixedController(100), max_draft_mib=1e-6)
    tiny.set_memory(MEMORY)
    assert tiny.plan_drafts(branches(3), AMPLE).max_total == 0


@dataclass
class CountingMachine(Machine):
    """Counts draft nodes of plain and drafted rounds."""

    drafted: int = 0

    def cost(self, count: int, drafted: int, context: int) -> RoundCost:
        self.drafted += drafted
        return super().cost(count, drafted, context)


@pytest.mark.parametrize("per_row", [5e-5, 2e-4])
def test_fewer_nodes_keep_nearly_all_of_the_speed(per_row: float) -> None:
    """On a simulated machine whose costs are known."""
    rates, nodes = [], []
    for keep_gain in (1.0, 0.9):
        machine = CountingMachine(per_row=per_row)
        controller = MemoryController(ThroughputController(max_draft_tokens=200), keep_gain=keep_gain)
        controller.set_memory(MEMORY)
        controller.calibrate_cost(machine.costs(50))
        machine.drafted = 0
        rates.append(simulate(controller, machine, count=4))
        nodes.append(machine.drafted)
    assert rates[1] > 0.93 * rates[0]
    assert nodes[1] < 0.8 * nodes[0]


def test_wrong_settings_are_named() -> None:
    wrong: list[tuple[str, Any]] = [("max_draft_mib", 0), ("keep_gain", 0), ("keep_gain", 1.1)]
    for name, value in wrong:
        with pytest.raises(ValueError, match=f"{name} must be"):
            MemoryController(FixedController(4), **{name: value})

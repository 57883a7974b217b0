"""Rounds of a 7B model on named cards, from their bandwidth and peak, and of the bundled model on a CPU."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from decoding.core import SamplingParams, Tokens
from decoding.model.round_graphs import ROW_COUNTS
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import BatchLoad, Branch, Controller, Feedback, RoundCost
from tests.support.draft_sources import FakeSource
from tests.support.simulated_machine import expected_tokens, sample_accepted_path

_WEIGHT_BYTES, _KV_BYTES = 14.1e9, 57_344


@dataclass(frozen=True)
class SimulatedCard:
    """A machine on which rounds take known seconds.

    row_counts        counts to which rows are filled up; empty where each row costs
    base, per_row     seconds of a round: the larger of the base and the rows' share
    per_key           seconds of a token of context
    per_branch, per_node    seconds of the host
    drafting          seconds of proposing and learning
    """

    name: str
    row_counts: tuple[int, ...]
    base: float
    per_row: float
    per_key: float
    per_branch: float = 3e-6
    per_node: float = 2e-6
    drafting: float = 3e-4
    adds_rows: bool = False

    @classmethod
    def from_speed(cls, name: str, bandwidth: float, peak: float) -> SimulatedCard:
        """Returns a card that reads `bandwidth` bytes and does `peak` operations a second, with graphs."""
        return cls(name, ROW_COUNTS, _WEIGHT_BYTES / bandwidth, _WEIGHT_BYTES / peak, _KV_BYTES / bandwidth)

    def round_seconds(self, branches: int, nodes: int, context: int) -> float:
        """Returns the seconds of a round; with nodes also those of drafting."""
        rows = branches + nodes
        if self.row_counts and rows <= self.row_counts[-1]:
            rows = self.row_counts[bisect_left(self.row_counts, rows)]
        work = self.base + self.per_row * rows if self.adds_rows else max(self.base, self.per_row * rows)
        host = self.per_branch * branches + self.per_node * nodes + (self.drafting if nodes else 0.0)
        return work + self.per_key * context + host

    def profile_rounds(self, noise: float, seed: int) -> list[RoundCost]:
        """Returns what a warm-up profile measures: each count of rows without drafts and with, and two contexts."""
        rng, costs = np.random.default_rng(seed), []
        counts = self.row_counts or (1, 8, 32, 64)
        for rows in counts:
            for branches, nodes in {(rows, 0), (max(1, rows // 4), rows - max(1, rows // 4))}:
                for context in (100 * branches, 1000 * branches):
                    # a profile drafts at random, which costs nothing
                    seconds = self.round_seconds(branches, nodes, context) - (self.drafting if nodes else 0.0)
                    costs += [
                        RoundCost(branches, branches + nodes, context, seconds * rng.lognormal(0, noise))
                        for _ in range(3)
                    ]
        return costs


CARDS = (
    SimulatedCard.from_speed("H100", 3.0e12, 0.79e15),
    SimulatedCard.from_speed("H200", 4.3e12, 0.79e15),
    SimulatedCard.from_speed("A100", 1.7e12, 0.25e15),
    SimulatedCard.from_speed("L4", 0.27e12, 0.1e15),
    SimulatedCard("CPU", (), 2.6e-4, 2.8e-5, 2e-8, per_branch=8e-6, per_node=8e-6, drafting=2e-4, adds_rows=True),
)


def simulate_rounds(
    controller: Controller,
    card: SimulatedCard,
    branches: int,
    *,
    first: int,
    rounds: int,
    noise: float = 0.0,
    seed: int = 0,
) -> float:
    """Returns expected tokens per second from round `first` on; the controller's clock varies by `noise`."""
    source, dice = FakeSource(vocabulary=12, known=12, reads=1), random.Random(seed)
    drafter = TreeDrafter(source, "likely", width=3, depth=8)
    texts: list[Tokens] = [(i % 12, (i + 1) % 12, (i + 2) % 12) for i in range(branches)]
    tokens = seconds = 0.0
    for number in range(rounds):
        live = [Branch(i, "a problem", text, i, SamplingParams(), 1000) for i, text in enumerate(texts)]
        context = 500 * branches
        plan = controller.plan_drafts(live, BatchLoad(branches, 0, context, 512 - branches))
        drafter.level_seconds = 1e-4  # about what it is: measured, it would vary with what else this machine does
        drafts = drafter.propose(live, plan) if plan.max_total else [Draft()] * branches
        feedback = []
        for i, (one, draft) in enumerate(zip(live, drafts, strict=True)):
            path, new = sample_accepted_path(source, one.tokens[:], draft, dice)
            feedback.append(Feedback(one, draft, path))
            texts[i] = (*texts[i][-2:], *new)
        nodes = sum(map(len, drafts))
        took = card.round_seconds(branches, nodes, context)
        if number >= first:
            tokens += branches + sum(expected_tokens(source, o.tokens[:], d) for o, d in zip(live, drafts, strict=True))
            seconds += took
        drafter.observe(feedback)
        measured = took * dice.lognormvariate(0, noise)
        controller.observe(feedback, RoundCost(branches, branches + nodes, context, measured))
    return tokens / seconds

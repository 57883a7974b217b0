"""A machine with known round costs, and decoding rounds simulated on it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from decoding.core import SamplingParams, Tokens
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import BatchLoad, Branch, Controller, Feedback, RoundCost
from tests.support.draft_sources import FakeSource

AMPLE = BatchLoad(num_running=3, num_waiting=0, context_tokens=100, spare_tokens=1000)


def branches(count: int) -> list[Branch]:
    return [Branch(i, "a problem", (1, 2, 3), i, SamplingParams(), 100) for i in range(count)]


def spare(rows: int) -> BatchLoad:
    return BatchLoad(num_running=3, num_waiting=0, context_tokens=100, spare_tokens=rows)


def name_of(controller: Controller) -> str:
    return type(controller).__name__


@dataclass
class Machine:
    """Durations of rounds, varied by `noise`, and now and then `hiccup` times as long."""

    base: float = 0.02
    per_branch: float = 4e-4
    per_row: float = 2e-4
    per_context: float = 1e-6
    noise: float = 0.0
    hiccup: float = 1.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def seconds(self, count: int, drafted: int, context: int) -> float:
        return self.base + self.per_branch * count + self.per_row * drafted + self.per_context * context

    def cost(self, count: int, drafted: int, context: int) -> RoundCost:
        seconds = self.seconds(count, drafted, context) * self.rng.lognormal(0, self.noise)
        if self.rng.random() < 0.05:
            seconds *= self.hiccup
        return RoundCost(count, count + drafted, context, seconds)

    def costs(self, rounds: int) -> list[RoundCost]:
        """Of rounds of any size."""
        sizes = zip(
            self.rng.integers(1, 33, rounds),
            self.rng.integers(0, 200, rounds),
            self.rng.integers(50, 20_000, rounds),
            strict=True,
        )
        return [self.cost(int(count), int(drafted), int(context)) for count, drafted, context in sizes]


def expected_tokens(source: FakeSource, text: Tokens, draft: Draft) -> float:
    """Expected accepted nodes, for a target with the source's distribution."""
    total, reach = 0.0, {-1: 1.0}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        context = text + tuple(draft.tokens[i] for i in draft.path_to(parent))
        reach[node] = reach[parent] * source.table(context)[token]
        total += reach[node]
    return total


def sample_accepted_path(source: FakeSource, text: Tokens, draft: Draft, rng: random.Random) -> tuple[Tokens, Tokens]:
    """The path that such a target accepts, and the next token."""
    path: list[int] = []
    node = -1
    while True:
        table = source.table(text)
        token = rng.choices([*table, 0], [*table.values(), max(0.0, 1 - sum(table.values()))])[0]
        children = {draft.tokens[i]: i for i, parent in enumerate(draft.parents) if parent == node}
        if token not in children:
            return tuple(path), (*(draft.tokens[i] for i in path), token)
        node = children[token]
        path.append(node)
        text += (token,)


def simulate(controller: Controller, machine: Machine, count: int, rounds: int = 100) -> float:
    """Expected tokens per second of the second half, on a simulated machine."""
    source, rng = FakeSource(vocabulary=12, known=12, reads=1), random.Random(0)
    drafter = TreeDrafter(source, "likely", width=3, depth=6)
    texts: list[Tokens] = [(i, i + 1, i + 2) for i in range(count)]
    tokens = seconds = 0.0
    for number in range(rounds):
        live = [Branch(i, "a problem", text, i, SamplingParams(), 1000) for i, text in enumerate(texts)]
        load = BatchLoad(count, 0, sum(map(len, texts)), 400)
        plan = controller.plan_drafts(live, load)
        drafts = drafter.propose(live, plan) if plan.max_total else [Draft()] * count
        feedback = []
        for i, (one, draft) in enumerate(zip(live, drafts, strict=True)):
            path, new = sample_accepted_path(source, one.tokens[:], draft, rng)
            feedback.append(Feedback(one, draft, path))
            texts[i] += new
        cost = machine.cost(count, sum(map(len, drafts)), load.context_tokens)
        if number >= rounds // 2:
            tokens += count + sum(expected_tokens(source, o.tokens[:], d) for o, d in zip(live, drafts, strict=True))
            seconds += machine.seconds(count, sum(map(len, drafts)), load.context_tokens)
        drafter.observe(feedback)
        controller.observe(feedback, cost)
    return tokens / seconds

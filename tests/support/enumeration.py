"""Exact laws by enumeration: every draft and every decision of the rule, each with its probability.

The law compared is the joint law of all tokens a round may commit: three for a tree of depth two. Where the round
commits fewer, the target itself draws the rest. Numbers are fractions, so "equal" means equal; they are floats where a
rule's threshold is irrational.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

import numpy as np

from decoding.core import SamplingParams, Tokens
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.acceptance.verify import P
from decoding.speculation.draft import Draft, DraftSampling, SamplingRecord, VerifiedPath

T = TypeVar("T")
Law = dict[Tokens, Any]
VerifyTree = Callable[[Draft, P, UniformStream], VerifiedPath]


class ScriptedStream:
    """Decides by its script, then takes the first possible decision each time, and records the others."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.decisions: list[Any] = list(script)
        self.alternatives: list[list[Any]] = []
        self.chance: Any = 1
        self._at = 0

    def _next(self, possible: Callable[[], list[Any]]) -> Any:
        if self._at == len(self.decisions):
            first, *rest = possible()
            self.decisions.append(first)
            self.alternatives += [[*self.decisions[:-1], alternative] for alternative in rest]
        self._at += 1
        return self.decisions[self._at - 1]

    def accept_ratio(self, p: Any, q: Any = 1) -> bool:
        chance = 1 if p >= q and p > 0 else p / q if p > 0 else 0
        way = self._next(lambda: [way for way, some in ((True, chance), (False, 1 - chance)) if some > 0])
        self.chance *= chance if way else 1 - chance
        return bool(way)

    def sample_index(self, weights_V: Vector) -> int:
        way = self._next(lambda: [i for i, weight in enumerate(weights_V) if weight > 0])
        self.chance *= weights_V[way] / weights_V.sum()
        return int(way)


def enumerate_outcomes(
    play: Callable[[Any], T], make_stream: Callable[[Sequence[Any]], ScriptedStream] = ScriptedStream
) -> Iterator[tuple[T, Any]]:
    """Every value that `play` may return, with its probability."""
    todo: list[list[Any]] = [[]]
    while todo:
        stream = make_stream(todo.pop())
        result = play(stream)
        todo += stream.alternatives
        yield result, stream.chance


@dataclass(frozen=True)
class Instance:
    """A target p after fewer than `length` tokens and a drafter q after one fewer, each `[V]`."""

    length: int
    p: dict[Tokens, Vector]
    q: dict[Tokens, Vector]

    @classmethod
    def random(cls, seed: int, *, vocabulary: int = 3, length: int = 3, number: type = Fraction) -> Instance:
        """Small integers over their sum. Targets have zeros now and then, drafters none: any token may be drawn."""
        rng = random.Random(seed)

        def row(least: int) -> Vector:
            weights = [rng.randint(least, 12) for _ in range(vocabulary)]
            weights[rng.randrange(vocabulary)] += 1
            return np.array([number(weight) / number(sum(weights)) for weight in weights])

        contexts = [c for n in range(length) for c in product(range(vocabulary), repeat=n)]
        p = {context: row(0) for context in contexts}
        return cls(length, p, {context: row(1) for context in contexts if len(context) < length - 1})

    @cached_property
    def law(self) -> Law:
        """The law of the target's own tokens."""
        return self.continue_law({(): 1})

    def continue_law(self, law: Law) -> Law:
        """Returns a law of shorter sequences, continued by the target to full length."""
        total: Law = defaultdict(int)
        for tokens, mass in law.items():
            if len(tokens) == self.length:
                total[tokens] += mass
            else:
                for token, p in enumerate(self.p[tokens]):
                    for longer, more in self.continue_law({(*tokens, token): mass * p}).items():
                        total[longer] += more
        return dict(total)


def tokens_after(draft: Draft, node: int) -> Tokens:
    """The tokens from the anchor down to `node`."""
    return tuple(draft.tokens[i] for i in draft.path_to(node))


def draw_tree(kind: DraftSampling, fans: Sequence[int], q: dict[Tokens, Vector], stream: UniformStream) -> Draft:
    """A tree with `fans[d]` draws below every node of depth d."""
    tokens: list[int] = []
    parents: list[int] = []
    draws: dict[int, tuple[int, ...]] = {}
    qs: dict[int, tuple[Vector, Vector]] = {}
    level = [-1]
    for fan in fans:
        deeper: list[int] = []
        for parent in level:
            draft = Draft(tuple(tokens), tuple(parents))
            q_V = q[tokens_after(draft, parent)]
            children: dict[int, int] = {}
            order = []
            for token in _picks(kind, fan, q_V, stream):
                if token not in children:
                    children[token] = len(tokens)
                    tokens.append(token)
                    parents.append(parent)
                order.append(children[token])
            draws[parent], qs[parent] = tuple(order), (np.arange(len(q_V)), q_V)
            deeper += children.values()
        level = deeper
    made = Draft(tuple(tokens), tuple(parents), sampling_record=SamplingRecord(kind, draws, qs))
    made.assert_invariants()
    return made


def _picks(kind: DraftSampling, fan: int, q_V: Vector, stream: UniformStream) -> Iterator[int]:
    left_V = q_V.copy()
    for _ in range(fan):
        if kind == "likely":
            token = int(np.argmax(left_V))
        else:
            token = stream.sample_index(left_V)
        if kind != "iid":
            left_V[token] = 0
        yield token


@dataclass(frozen=True)
class Report:
    """The result of a rule on an instance: its distance from the target's law in total variation, and the mean
    number of accepted draft tokens."""

    distance: float
    mean_accepted: float


def verify_outcomes(verify_tree: VerifyTree, draft: Draft, instance: Instance) -> dict[VerifiedPath, Any]:
    """The law of the outcomes of one draft."""
    law: dict[VerifiedPath, Any] = defaultdict(int)
    for path, chance in enumerate_outcomes(
        lambda stream: verify_tree(draft, lambda node: instance.p[tokens_after(draft, node)], stream)
    ):
        law[path] += chance
    return dict(law)


def enumerate_drafts(
    instance: Instance, draw_draft: Callable[[UniformStream], Draft], verify_tree: VerifyTree
) -> Report:
    """Returns the report over every draft and every decision of the rule."""
    law: Law = defaultdict(int)
    mean_accepted: Any = 0
    for draft, drafted in enumerate_outcomes(draw_draft):
        for (path, last), chance in verify_outcomes(verify_tree, draft, instance).items():
            law[(*(draft.tokens[i] for i in path), last)] += drafted * chance
            mean_accepted += drafted * chance * len(path)
    return Report(distance(instance.continue_law(law), instance.law), float(mean_accepted))


def distance(law: Law, other: Law) -> float:
    """Returns the total variation between two laws."""
    return float(sum(abs(law.get(key, 0) - other.get(key, 0)) for key in law.keys() | other.keys()) / 2)


def filtered_distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The distribution after temperature, top-k, top-p and min-p, for one row `[V]`: slow and direct."""
    if params.temperature == 0:
        return np.array(np.eye(len(logits))[logits.argmax()])
    z = logits.astype(np.float64) / params.temperature
    order = np.argsort(-z, kind="stable")
    keep = list(order[: params.top_k] if params.top_k else order)
    p = np.exp(z - z.max())
    mass, selected, total = 0.0, [], p[keep].sum()
    for i in keep:
        if mass / total >= params.top_p:
            break
        selected.append(i)
        mass += p[i]
    selected = [i for i in selected if p[i] >= params.min_p * p.max()]
    out = np.zeros(len(logits))
    out[selected] = p[selected] / p[selected].sum()
    return out

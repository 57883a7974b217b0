"""Coupled acceptance reproduces the target exactly, although drafts are drawn with the target's own noise.

A proof by enumeration, in fractions: `tests.support.races` follows every winner of every distribution under one noise.
That tokens are the largest of log p and keyed Gumbel noise is tested in `test_sampler.py` and `test_noise.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, cast

import numpy as np
import pytest

from decoding.core import SamplingParams, Tokens
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.uniform_stream import Vector
from decoding.speculation.draft import Draft, VerifiedPath
from decoding.speculation.interfaces import Branch
from decoding.speculation.target_logits import TargetLogits
from tests.support.acceptance_rules import CAUGHT
from tests.support.enumeration import Instance, Law, distance, enumerate_outcomes, tokens_after
from tests.support.races import ScriptedRaces

Verify = Callable[[Draft, Instance, ScriptedRaces], VerifiedPath]


@dataclass(frozen=True)
class SampledRows:
    """What coupled acceptance reads of `TargetLogits`: the target's own token after each row of one branch."""

    tokens: np.ndarray
    first_rows: tuple[int, ...] = (0,)

    @property
    def logprobs(self) -> np.ndarray:
        return np.zeros(len(self.tokens))


def draw_coupled(fans: Sequence[int], instance: Instance, races: ScriptedRaces) -> Draft:
    """Returns a tree whose children are the first tokens to win under q, with the noise that the target will use."""
    tokens, parents, level = list[int](), list[int](), [-1]
    for depth, fan in enumerate(fans):
        deeper = []
        for parent in level:
            left_V = instance.q[tokens_after(Draft(tuple(tokens), tuple(parents)), parent)].copy()
            for _ in range(fan):
                token = races.find_winner(depth, left_V)
                left_V[token] = 0
                deeper.append(len(tokens))
                tokens.append(token)
                parents.append(parent)
        level = deeper
    return Draft(tuple(tokens), tuple(parents))


def sample_rows(draft: Draft, instance: Instance, races: ScriptedRaces) -> list[int]:
    """Returns the target's token after the root and after each node, with the noise of its position."""
    depths = (0, *draft.depths)
    return [
        races.find_winner(depths[1 + node], instance.p[tokens_after(draft, node)]) for node in range(-1, len(draft))
    ]


def verify_coupled(draft: Draft, instance: Instance, races: ScriptedRaces) -> VerifiedPath:
    """The rule itself."""
    target = cast("TargetLogits", SampledRows(np.array(sample_rows(draft, instance, races))))
    branch = Branch(0, "", (0,), 0, SamplingParams(), 9)
    (result,) = Coupled().verify_drafts([branch], [draft], target)
    return VerifiedPath(result.accepted_nodes, result.tokens[-1])


def write_text(verify: Verify, fans: Sequence[int], instance: Instance, races: ScriptedRaces) -> tuple[Tokens, Tokens]:
    """Returns a text whose first round had a draft, and the text of plain decoding with the same noise."""
    draft = draw_coupled(fans, instance, races)
    path, last = verify(draft, instance, races)
    text = (*(draft.tokens[node] for node in path), last)
    while len(text) < instance.length:
        text = (*text, races.find_winner(len(text), instance.p[text]))
    plain: Tokens = ()
    while len(plain) < instance.length:
        plain = (*plain, races.find_winner(len(plain), instance.p[plain]))
    return text, plain


def enumerate_texts(verify: Verify, fans: Sequence[int], instance: Instance) -> dict[tuple[Tokens, Tokens], Any]:
    """Returns the joint law of both texts."""
    law: dict[tuple[Tokens, Tokens], Any] = defaultdict(int)
    for texts, chance in enumerate_outcomes(lambda races: write_text(verify, fans, instance, races), ScriptedRaces):
        law[texts] += chance
    return dict(law)


def law_of_text(joint: dict[tuple[Tokens, Tokens], Any]) -> Law:
    law: Law = defaultdict(int)
    for (text, _), chance in joint.items():
        law[text] += chance
    return dict(law)


def enumerate_winners(weights: Sequence[Vector]) -> Iterator[tuple[Tokens, Any]]:
    """Every row of winners of races with one noise, and its probability."""
    return enumerate_outcomes(lambda races: tuple(races.find_winner(0, each_V) for each_V in weights), ScriptedRaces)


@pytest.mark.parametrize("fans", [(), (1,), (2,), (3,), (1, 1), (2, 1)], ids=str)
def test_text_is_that_of_plain_decoding_and_distributed_as_the_targets(fans: tuple[int, ...]) -> None:
    for seed in range(1 if len(fans) == 2 else 3):
        instance = Instance.random(seed, length=len(fans) + 1)
        joint = enumerate_texts(verify_coupled, fans, instance)
        assert all(text == plain for text, plain in joint)
        assert distance(law_of_text(joint), instance.law) == 0


def test_areas_are_the_published_chance_that_two_distributions_share_a_winner() -> None:
    """1 / sum of max(p / p[i], q / q[i]) for token i (Daliri et al., arXiv 2408.07978), which is P(accepted)."""
    for seed in range(8):
        instance = Instance.random(seed, length=2)
        both = p_V, q_V = instance.p[()], instance.q[()]
        won: dict[int, Fraction] = defaultdict(Fraction)
        for (first, second), chance in enumerate_winners(both):
            won[first] += chance * (first == second)
        for i in range(3):
            expected = 0 if p_V[i] == 0 else 1 / sum(max(p / p_V[i], q / q_V[i]) for p, q in zip(p_V, q_V, strict=True))
            assert won[i] == expected


def resample_after_rejection(draft: Draft, instance: Instance, races: ScriptedRaces) -> VerifiedPath:
    """Draws anew from p where the target's token was not drafted, though that tells what its noise is."""
    path, last = verify_coupled(draft, instance, races)
    end = path[-1] if path else -1
    has_children = end in draft.parents
    return VerifiedPath(path, races.sample_index(instance.p[tokens_after(draft, end)]) if has_children else last)


def reuse_noise_of_parent(draft: Draft, instance: Instance, races: ScriptedRaces) -> VerifiedPath:
    """Samples after a node with the noise of the node's own position."""
    depths = (0, *(depth - 1 for depth in draft.depths))
    after = [races.find_winner(depths[1 + i], instance.p[tokens_after(draft, i)]) for i in range(-1, len(draft))]
    return draft.follow_path(lambda node: after[node + 1])


def accept_second_winner(draft: Draft, instance: Instance, races: ScriptedRaces) -> VerifiedPath:
    """Takes a drafted token that comes second in the target's race where the first was not drafted."""

    def choose_token(node: int) -> int:
        depth = 0 if node < 0 else draft.depths[node]
        p_V = instance.p[tokens_after(draft, node)].copy()
        drafted = {draft.tokens[i] for i, parent in enumerate(draft.parents) if parent == node}
        first = races.find_winner(depth, p_V)
        p_V[first] = 0
        if not drafted or first in drafted or p_V.sum() == 0:
            return first
        second = races.find_winner(depth, p_V)
        return second if second in drafted else first

    return draft.follow_path(choose_token)


def exclude_rejected(draft: Draft, instance: Instance, races: ScriptedRaces) -> VerifiedPath:
    """Races again without the rejected tokens, as a rule with fresh noise must and one with shared noise must not."""

    def choose_token(node: int) -> int:
        depth = 0 if node < 0 else draft.depths[node]
        p_V = instance.p[tokens_after(draft, node)].copy()
        for token in (draft.tokens[i] for i, parent in enumerate(draft.parents) if parent == node):
            if races.accept_ratio(p_V[token]):
                return token
            p_V[token] = 0
        return races.find_winner(depth, p_V if p_V.sum() else instance.p[tokens_after(draft, node)])

    return draft.follow_path(choose_token)


@pytest.mark.parametrize(
    "broken", [resample_after_rejection, reuse_noise_of_parent, accept_second_winner, exclude_rejected]
)
def test_every_bug_of_shared_noise_is_caught(broken: Verify) -> None:
    def off(seed: int) -> float:
        instance = Instance.random(seed, length=2)
        return distance(law_of_text(enumerate_texts(broken, [1], instance)), instance.law)

    assert any(off(seed) > CAUGHT for seed in range(4))


def test_every_noise_is_enumerated() -> None:
    weights = [np.array([Fraction(n, 9) for n in row]) for row in product((1, 3, 5), repeat=3)][:6]
    chances = [chance for _, chance in enumerate_winners(weights)]
    assert sum(chances) == 1
    assert len(chances) > 3

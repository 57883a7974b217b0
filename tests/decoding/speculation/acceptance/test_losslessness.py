"""Every published rule reproduces the target exactly with the draft sampling it supports.

A proof by enumeration (`tests.support.enumeration`), in fractions: the joint law of all tokens a round may commit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from decoding.speculation.acceptance.k_sequential import KSequential
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_iid import RecursiveIid
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.acceptance.residual import (
    normalize_weights,
    positive_part,
)
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.acceptance.verify import P, TreeRule, children_of
from decoding.speculation.draft import Draft, DraftSampling, SamplingRecord, VerifiedPath
from tests.support.acceptance_rules import (
    NO,
    SAMPLING,
    assert_lossless,
    enumerate_reports,
    id_of,
    max_distance,
    mean_accepted,
)
from tests.support.enumeration import (
    Instance,
    Report,
    enumerate_drafts,
    verify_outcomes,
)

PAIRS = [(rule, kind) for rule in SAMPLING for kind in rule.supported_sampling if kind != "coupled"]


@pytest.mark.parametrize(
    ("rule", "kind", "fans"),
    [(*pair, fans) for pair in PAIRS for fans in [(1, 1), (2, 1), (1, 2)]]
    + [(r, r.supported_sampling[0], (2, 2)) for r in SAMPLING],
    ids=id_of,
)
def test_three_tokens_are_distributed_as_the_targets(
    rule: TreeRule, kind: DraftSampling, fans: tuple[int, ...]
) -> None:
    assert_lossless(rule, kind, fans, seeds=range(1) if fans == (2, 2) else range(3))


@pytest.mark.parametrize("fan", [1, 2, 3, 4])
@pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=id_of)
def test_two_tokens_are_too_with_four_to_choose_from(rule: TreeRule, kind: DraftSampling, fan: int) -> None:
    """Four draws without replacement leave q empty after the last."""
    assert_lossless(rule, kind, [fan], seeds=range(1 if fan == 4 else 4), vocabulary=4)


@pytest.mark.parametrize("rule", SAMPLING, ids=id_of)
def test_rounding_does_not_add_up(rule: TreeRule) -> None:
    """In float64, as in decoding. The anchor's weight in `traversal` once came out below 1: z / (z + 1 - w)."""
    reports = enumerate_reports(rule.verify_tree, rule.supported_sampling[0], (2, 1), seeds=range(4), number=float)
    assert max_distance(reports) < 1e-12


@pytest.mark.parametrize("rule", SAMPLING, ids=id_of)
def test_the_empty_draft_is_plain_sampling(rule: TreeRule) -> None:
    instance = Instance.random(0, length=1)
    assert enumerate_drafts(instance, partial(return_draft, Draft()), rule.verify_tree) == Report(0.0, 0.0)


def return_draft(draft: Draft, stream: UniformStream) -> Draft:
    """Nothing random about it."""
    return draft


def test_point_mass_is_lossless_given_the_draft() -> None:
    """Whatever was drafted, and how: so noise used before, or the target's own, does no harm."""
    instance = Instance.random(3)
    for draft in (Draft((0, 2, 1, 1), (-1, -1, 0, 1)), Draft((2, 1, 0), (-1, 0, 0)), Draft((1,), (-1,))):
        assert enumerate_drafts(instance, partial(return_draft, draft), PointMass().verify_tree).distance == 0


def test_point_mass_is_trying_the_children_one_by_one() -> None:
    def one_by_one(draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        def decide(node: int) -> int:
            p_V = p(node).copy()
            for child in np.flatnonzero(np.array(draft.parents) == node):
                if stream.accept_ratio(p_V[draft.tokens[child]]):
                    return draft.tokens[child]
                p_V[draft.tokens[child]] = 0
                p_V = normalize_weights(p_V, otherwise=p_V)
            return stream.sample_index(p_V)

        return draft.follow_path(decide)

    draft = Draft((0, 2, 1, 1), (-1, -1, 0, 1))
    for seed in range(5):
        instance = Instance.random(seed)
        assert verify_outcomes(one_by_one, draft, instance) == verify_outcomes(PointMass().verify_tree, draft, instance)


def test_traversal_of_a_chain_is_block_verification() -> None:
    """Not only in law: each single draft has the same fate, with the same probabilities."""

    def block(draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        w: list[Any] = [1]
        rest: list[Vector] = []
        for node, token in enumerate(draft.tokens):
            _, ids_K, q_K = children_of(draft, node - 1)
            rest.append(positive_part(w[-1] * p(node - 1), ids_K, q_K))
            w.append(min(1, w[-1] * p(node - 1)[token] / q_K[token]))
        end = len(draft)
        h = [z / (z + 1 - w[i]) if (z := rest[i].sum()) else 0 for i in range(1, end)]
        tau = max([0, *(i for i, chance in enumerate([*h, w[end]], start=1) if stream.accept_ratio(chance))])
        last = p(end - 1) if tau == end else normalize_weights(rest[tau], otherwise=p(tau - 1))
        return VerifiedPath(tuple(range(tau)), stream.sample_index(last))

    for seed in range(8):
        instance = Instance.random(seed)
        for first, second in np.ndindex(3, 3):
            q = {node: (np.arange(3), instance.q[c]) for node, c in ((-1, ()), (0, (int(first),)))}
            draft = Draft(
                (int(first), int(second)), (-1, 0), sampling_record=SamplingRecord(NO, {-1: (0,), 0: (1,)}, q)
            )
            assert verify_outcomes(block, draft, instance) == verify_outcomes(Traversal().verify_tree, draft, instance)


def test_rules_rank_as_published() -> None:
    """One node of four tokens (PAPERS 7.1): without replacement > k-sequential > recursive iid > point mass."""
    pairs: list[tuple[TreeRule, DraftSampling]] = [
        (RecursiveRejection(), NO),
        (KSequential(), "iid"),
        (RecursiveIid(), "iid"),
        (PointMass(), NO),
    ]
    for fan, seeds in ((2, range(20)), (3, range(6))):
        ranked = [
            enumerate_reports(r.verify_tree, kind, [fan], seeds=seeds, vocabulary=4, number=float) for r, kind in pairs
        ]
        means = [mean_accepted(reports) for reports in ranked]
        without_replacement, _, iid, _ = ranked
        assert means == sorted(means, reverse=True)
        assert all(a.mean_accepted >= b.mean_accepted - 1e-12 for a, b in zip(without_replacement, iid, strict=True))


@pytest.mark.parametrize("fans", [(1, 1), (2, 1)], ids=str)
def test_traversal_keeps_more_than_recursive_rejection(fans: tuple[int, ...]) -> None:
    up = enumerate_reports(Traversal().verify_tree, NO, fans, seeds=range(10), number=float)
    down = enumerate_reports(RecursiveRejection().verify_tree, NO, fans, seeds=range(10), number=float)
    assert all(a.mean_accepted >= b.mean_accepted - 1e-12 for a, b in zip(up, down, strict=True))
    assert mean_accepted(up) > mean_accepted(down) + 0.01

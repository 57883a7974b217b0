"""Known bugs of acceptance rules change the distribution, which the enumeration of `tests.support.enumeration` detects.

The bugs are those found in the field; most of them keep or raise acceptance, so nothing else would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from decoding.speculation.acceptance.k_sequential import KSequential
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_iid import RecursiveIid
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.acceptance.residual import (
    exclude_token,
    normalize_weights,
    residual_distribution,
)
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.acceptance.verify import DraftedChildren, P, children_of
from decoding.speculation.draft import Draft, DraftSampling, SamplingRecord, VerifiedPath
from tests.support.acceptance_rules import (
    CAUGHT,
    NO,
    REJECTION,
    change_record,
    enumerate_reports,
    id_of,
    max_distance,
)
from tests.support.enumeration import (
    Instance,
    VerifyTree,
    draw_tree,
    enumerate_drafts,
)


@dataclass(frozen=True)
class BrokenRule:
    """A rule with a known bug: drafts sampled as `kind`, changed by `tamper`, verified by `verify_tree`."""

    name: str
    kind: DraftSampling
    verify_tree: VerifyTree
    tamper: Callable[[Draft], Draft] = lambda draft: draft


def draft_prob(draft: Draft, node: int) -> Any:
    assert draft.sampling_record is not None
    ids_K, q_K = draft.sampling_record.draft_probs[draft.parents[node]]
    return q_K[ids_K == draft.tokens[node]][0]


def resort_children(draft: Draft) -> Draft:
    assert draft.sampling_record is not None
    draws = draft.sampling_record.children.items()
    return change_record(
        draft, children={at: tuple(sorted(nodes, key=lambda i: -draft_prob(draft, i))) for at, nodes in draws}
    )


def drop_unlikely(draft: Draft) -> Draft:
    unlikely = {node for node in range(len(draft)) if draft_prob(draft, node) < Fraction(1, 4)}
    return draft.select_nodes(node for node in range(len(draft)) if not unlikely & set(draft.path_to(node)))


def update_probs(draft: Draft) -> Draft:
    """The table went on learning while the draft was on its way."""
    assert draft.sampling_record is not None
    return change_record(
        draft, draft_probs={at: (ids, (q + q[::-1]) / 2) for at, (ids, q) in draft.sampling_record.draft_probs.items()}
    )


def leave_unnormalised(draft: Draft) -> Draft:
    """q as the table has it, where the stored ids hold three quarters of the mass."""
    assert draft.sampling_record is not None
    return change_record(
        draft, draft_probs={at: (ids, q * 3 / 4) for at, (ids, q) in draft.sampling_record.draft_probs.items()}
    )


def deduplicate_draws(draft: Draft) -> Draft:
    assert draft.sampling_record is not None
    return change_record(
        draft, children={at: tuple(dict.fromkeys(nodes)) for at, nodes in draft.sampling_record.children.items()}
    )


def cut_to_two(draft: Draft) -> Draft:
    """Room for two nodes: a third draw stays only if it repeats one of the others; `Draft` itself refuses that."""
    return change_record(change_record(draft, sampling=NO).truncate_to(nodes=2, depth=9), sampling="iid")


def as_distinct(draft: Draft) -> Draft:
    return change_record(draft, sampling=NO)


def as_independent(draft: Draft) -> Draft:
    return change_record(draft, sampling="iid")


def last_from_p(draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
    def choose_token(p_V: Vector, drafted: DraftedChildren) -> int:
        whole_V, q_K = p_V, drafted.q_K
        for _, token, at in drafted.children:
            if stream.accept_ratio(p_V[token], q_K[at]):
                return token
            p_V, q_K = residual_distribution(p_V, drafted.ids_K, q_K), exclude_token(q_K, at)
        return stream.sample_index(whole_V)

    return draft.follow_path(lambda node: choose_token(p(node), children_of(draft, node)))


def last_from_first_q(draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
    """Residual from q as it was before any child was rejected."""

    def choose_token(p_V: Vector, drafted: DraftedChildren) -> int:
        q_K = drafted.q_K
        for _, token, at in drafted.children:
            if stream.accept_ratio(p_V[token], q_K[at]):
                return token
            p_V, q_K = residual_distribution(p_V, drafted.ids_K, drafted.q_K), exclude_token(q_K, at)
        return stream.sample_index(p_V)

    return draft.follow_path(lambda node: choose_token(p(node), children_of(draft, node)))


def try_children(
    chance: Callable[[Any, Any], tuple[Any, Any]],
    *,
    is_masked: bool = True,
    is_renormalised: bool = True,
    last_from_p: bool = False,
) -> VerifyTree:
    """Point mass as it is derived: children are tried one by one, each with its probability under the residual.

    chance       of a child's probability and that under q, what `accept_ratio` compares
    is_masked    whether a rejected child loses its probability
    last_from_p  whether the last token is drawn from p, rejected children included
    """

    def verify_tree(draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        def choose_token(node: int) -> int:
            p_V = p(node).copy()
            for _, token, at in (drafted := children_of(draft, node)).children:
                if stream.accept_ratio(*chance(p_V[token], drafted.q_K[at])):
                    return token
                if is_masked:
                    p_V[token] = 0
                if is_renormalised:
                    p_V = normalize_weights(p_V, otherwise=p_V)
            return stream.sample_index(p(node) if last_from_p or not p_V.sum() else p_V)

        return draft.follow_path(choose_token)

    return verify_tree


def by_p(p: Any, q: Any) -> tuple[Any, Any]:
    return p, 1


def by_ratio(p: Any, q: Any) -> tuple[Any, Any]:
    return p, q


BROKEN_RULES = [
    BrokenRule("point mass, last token from p", "likely", try_children(by_p, last_from_p=True)),
    BrokenRule("point mass, p over q", "likely", try_children(by_ratio)),
    BrokenRule("point mass, p over q of a sample", NO, try_children(by_ratio)),
    BrokenRule("point mass, rejected tokens keep their probability", "likely", try_children(by_p, is_masked=False)),
    BrokenRule("point mass, not renormalised", "likely", try_children(by_p, is_renormalised=False)),
    BrokenRule("children re-sorted", NO, RecursiveRejection().verify_tree, resort_children),
    BrokenRule("children re-sorted, traversal", NO, Traversal().verify_tree, resort_children),
    BrokenRule("children drop_unlikely by their own q", NO, RecursiveRejection().verify_tree, drop_unlikely),
    BrokenRule("children drop_unlikely by their own q, traversal", NO, Traversal().verify_tree, drop_unlikely),
    BrokenRule("q changed tokens_after the draw", NO, RecursiveRejection().verify_tree, update_probs),
    BrokenRule("q changed after the draw, iid", "iid", RecursiveIid().verify_tree, update_probs),
    BrokenRule("truncated q not renormalised", NO, RecursiveRejection().verify_tree, leave_unnormalised),
    BrokenRule("truncated q not renormalised, iid", "iid", RecursiveIid().verify_tree, leave_unnormalised),
    BrokenRule("top-k taken for a sample", "likely", RecursiveRejection().verify_tree),
    BrokenRule("top-k taken for a sample, traversal", "likely", Traversal().verify_tree),
    BrokenRule("q not masked tokens_after a rejection", NO, RecursiveIid().verify_tree),
    BrokenRule("last token from p", NO, last_from_p),
    BrokenRule("last token from p and the first q", NO, last_from_first_q),
    BrokenRule("iid deduplicate_draws, q unmasked", "iid", RecursiveIid().verify_tree, deduplicate_draws),
    BrokenRule("iid cut_to_two to two distinct tokens", "iid", RecursiveIid().verify_tree, cut_to_two),
    BrokenRule("k_sequential without replacement", NO, KSequential().verify_tree),
    BrokenRule("k_sequential of top-k", "likely", KSequential().verify_tree),
    BrokenRule("recursive_rejection of iid", "iid", RecursiveRejection().verify_tree),
    BrokenRule("traversal of iid, a repeated draw dropped", "iid", Traversal().verify_tree, deduplicate_draws),
    BrokenRule("traversal of iid, q masked", "iid", Traversal().verify_tree, as_distinct),
    BrokenRule("traversal without replacement, q unmasked", NO, Traversal().verify_tree, as_independent),
]


@pytest.mark.parametrize("broken", BROKEN_RULES, ids=lambda broken: broken.name)
def test_every_known_bug_is_caught(broken: BrokenRule) -> None:
    """By the enumeration above, three children of four tokens; one instance of a few is enough."""

    def off(seed: int) -> float:
        return max_distance(
            enumerate_reports(broken.verify_tree, broken.kind, [3], seeds=[seed], vocabulary=4, tamper=broken.tamper)
        )

    assert any(off(seed) > CAUGHT for seed in range(8))


def test_point_mass_without_its_bugs_is_lossless() -> None:
    """So each of them is caught for itself, and not for how the children are tried."""
    assert max_distance(enumerate_reports(try_children(by_p), "likely", (2, 1), seeds=range(3))) == 0


def test_what_looks_like_a_bug_and_is_none() -> None:
    """Dropping and reordering under point mass; independent draws without repeats under a masked q; a draft cut to
    size by how many nodes came before, never by which; identical draws below siblings, if seen from the top."""
    point, down, up = PointMass().verify_tree, RecursiveRejection().verify_tree, Traversal().verify_tree
    for kind, verify_tree, tamper in (
        (NO, point, drop_unlikely),
        (NO, point, resort_children),
        ("iid", point, cut_to_two),
        ("iid", down, deduplicate_draws),
        (NO, down, lambda draft: draft.truncate_to(nodes=3, depth=9)),
        (NO, up, lambda draft: draft.truncate_to(nodes=3, depth=9)),
        (NO, up, lambda draft: draft.truncate_to(nodes=9, depth=1)),
    ):
        assert max_distance(enumerate_reports(verify_tree, kind, (2, 1), seeds=range(3), tamper=tamper)) == 0


def test_traversal_needs_independent_draws_below_siblings() -> None:
    """One noise for all nodes of a depth, as noise keyed by position alone would be: seen from the top only one of them
    counts, but leaves first they are evidence about each other."""
    distances: dict[str, float] = {}
    for rule in REJECTION[:2]:
        distances[id_of(rule)] = 0
        for seed in range(4):
            instance = Instance.random(seed)
            same = {context: instance.q[(0,)[: len(context)]] for context in instance.q}

            def draw_draft(stream: UniformStream, same: dict[Any, Vector] = same) -> Draft:
                top = draw_tree(NO, [2], same, stream)
                (below,) = draw_tree(NO, [1], {(): same[0,]}, stream).tokens
                q = {node: (np.arange(3), same[(0,)[: 1 + node]]) for node in (-1, 0, 1)}
                drafted = SamplingRecord(NO, {-1: (0, 1), 0: (2,), 1: (3,)}, q)
                return Draft((*top.tokens, below, below), (-1, -1, 0, 1), sampling_record=drafted)

            report = enumerate_drafts(replace(instance, q=same), draw_draft, rule.verify_tree)
            distances[id_of(rule)] = max(distances[id_of(rule)], report.distance)
    assert distances["RecursiveRejection"] == 0
    assert distances["Traversal"] > CAUGHT

"""Drafts whose draws decide where their nodes are: what is lossless for them, by enumeration, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_iid import RecursiveIid
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.uniform_stream import UniformStream
from decoding.speculation.acceptance.verify import TreeRule, check_sampling
from decoding.speculation.draft import SELF_SHAPED, Draft, DraftSampling
from tests.support.acceptance_rules import ALL, CAUGHT, change_record, id_of
from tests.support.enumeration import Instance, VerifyTree, draw_tree, enumerate_drafts
from tests.support.random_shapes import DrawShape, draw_beam, draw_dynamic_tree

SHAPES: dict[str, DrawShape] = {
    "a beam of two paths": draw_beam,
    "a beam of one path": partial(draw_beam, widths=(1, 1)),
    "a tree of three draws": draw_dynamic_tree,
    "a tree of five draws": partial(draw_dynamic_tree, nodes=5),
}


DEEP: dict[str, DrawShape] = {
    "a beam of three paths": partial(draw_beam, widths=(3, 3, 3)),
    "a tree of six draws": partial(draw_dynamic_tree, nodes=6, depth=3),
}
RULES = [RecursiveRejection(), Traversal(), PointMass()]


def report_distance(
    draw_shape: DrawShape,
    verify_tree: VerifyTree,
    seed: int,
    tamper: Callable[[Draft], Draft] = lambda draft: draft,
    **sizes: int,
) -> float:
    instance = Instance.random(seed, number=Fraction, **sizes)

    def draw_draft(stream: UniformStream) -> Draft:
        return tamper(draw_shape(instance.q, stream))

    return enumerate_drafts(instance, draw_draft, verify_tree).distance


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", RULES, ids=id_of)
def test_three_tokens_are_distributed_as_the_targets(rule: TreeRule, shape: str) -> None:
    assert report_distance(SHAPES[shape], rule.verify_tree, seed=1) == 0


@pytest.mark.parametrize("shape", DEEP)
@pytest.mark.parametrize("rule", RULES, ids=id_of)
def test_four_tokens_are_too_with_two_to_choose_from(rule: TreeRule, shape: str) -> None:
    assert report_distance(DEEP[shape], rule.verify_tree, seed=1, vocabulary=2, length=4) == 0


def record_draw_prob(draft: Draft, node: int) -> Any:
    assert draft.sampling_record is not None
    ids_K, q_K = draft.sampling_record.draft_probs[draft.parents[node]]
    return q_K[ids_K == draft.tokens[node]][0]


def resort_children(draft: Draft) -> Draft:
    assert draft.sampling_record is not None
    return change_record(
        draft,
        children={
            at: tuple(sorted(nodes, key=lambda i: -record_draw_prob(draft, i)))
            for at, nodes in draft.sampling_record.children.items()
        },
    )


def beam_by_probability(q: Any, stream: UniformStream) -> Draft:
    """Children drawn without replacement, of which the two likeliest paths of a level stay."""
    whole = draw_tree("without_replacement", (2, 2), q, stream)

    def path_probability(node: int) -> Any:
        product: Any = 1
        for one in whole.path_to(node):
            product = product * record_draw_prob(whole, one)
        return product

    deepest = sorted((n for n in range(len(whole)) if whole.depths[n] == 2), key=path_probability)[-2:]
    return whole.select_nodes(sorted({node for leaf in deepest for node in whole.path_to(leaf)}))


def tree_by_own_probability(q: Any, stream: UniformStream) -> Draft:
    """The likeliest three nodes of a larger draw, each with its own token's probability."""
    whole = draw_tree("without_replacement", (2, 1), q, stream)
    unlikely = min((n for n in range(len(whole)) if n not in whole.parents), key=partial(record_draw_prob, whole))
    return whole.select_nodes(n for n in range(len(whole)) if n != unlikely)


BROKEN: dict[str, tuple[DrawShape, VerifyTree, Callable[[Draft], Draft]]] = {
    "a beam re-sorted, leaves first": (draw_beam, Traversal().verify_tree, resort_children),
    "a beam by probability, leaves first": (beam_by_probability, Traversal().verify_tree, lambda draft: draft),
    "a tree by own probability, leaves first": (tree_by_own_probability, Traversal().verify_tree, lambda draft: draft),
    "a beam as independent draws": (draw_beam, RecursiveIid().verify_tree, lambda draft: draft),
    "a tree as independent draws": (draw_dynamic_tree, RecursiveIid().verify_tree, lambda draft: draft),
    "a beam re-sorted": (draw_beam, RecursiveRejection().verify_tree, resort_children),
    "a tree re-sorted": (draw_dynamic_tree, RecursiveRejection().verify_tree, resort_children),
    "a beam by probability": (beam_by_probability, RecursiveRejection().verify_tree, lambda draft: draft),
    "a tree by own probability": (tree_by_own_probability, RecursiveRejection().verify_tree, lambda draft: draft),
}


@pytest.mark.parametrize("bug", BROKEN)
def test_every_known_bug_is_caught(bug: str) -> None:
    draw_shape, verify_tree, tamper = BROKEN[bug]
    assert any(report_distance(draw_shape, verify_tree, seed, tamper) > CAUGHT for seed in range(8))


@pytest.mark.parametrize("draw", SELF_SHAPED)
def test_rules_of_independent_draws_refuse_them(draw: DraftSampling) -> None:
    for rule in ALL:
        if rule.supported_sampling == ("iid",):
            with pytest.raises(ValueError, match=f"needs draw=iid, got draw={draw}"):
                check_sampling(rule, draw)
        else:
            check_sampling(rule, draw)


def test_a_beam_of_all_paths_is_the_whole_tree() -> None:
    instance = Instance.random(0, vocabulary=2, length=3)
    draft = draw_beam(instance.q, _First(), widths=(4, 4))
    assert sorted(zip(draft.parents, draft.tokens, strict=True)) == [(-1, 0), (-1, 1), (0, 0), (0, 1), (1, 0), (1, 1)]


class _First:
    """Decides for the first possible outcome."""

    def accept_ratio(self, p: Any, q: Any = 1) -> bool:
        return bool(p > 0)

    def sample_index(self, weights_V: Any) -> int:
        return int(np.flatnonzero(weights_V)[0])

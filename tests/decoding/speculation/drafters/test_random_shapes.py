"""The drafters of stochastic beams and dynamic trees draw what the definitions draw, with the same probabilities."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest

from decoding.core import Tokens
from decoding.speculation.draft import SELF_SHAPED, Draft, DraftSampling, TreeTemplate
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import CostEstimate, DraftPlan
from tests.support.draft_sources import FakeSource, branch, random_branches
from tests.support.enumeration import enumerate_outcomes, tokens_after
from tests.support.random_shapes import DrawShape, draw_beam, draw_dynamic_tree

TEXT = (1, 2, 0)
SOURCE = FakeSource(vocabulary=3, known=3)
Shape = tuple[tuple[Tokens, Tokens], ...]


def read_shape(draft: Draft) -> Shape:
    """The children of every path, in the order drawn."""
    assert draft.sampling_record is not None
    return tuple(
        sorted(
            (tokens_after(draft, parent), tuple(draft.tokens[i] for i in children))
            for parent, children in draft.sampling_record.children.items()
        )
    )


def draw_many(kind: DraftSampling, width: int, nodes: int, count: int, depth: int = 2) -> list[Draft]:
    """Draws for many seeds, one branch a round."""
    drafter = TreeDrafter(SOURCE, kind, width=width, depth=depth)
    return [drafter.propose([branch(TEXT, seed)], DraftPlan((nodes,), nodes))[0] for seed in range(count)]


@pytest.mark.parametrize(
    ("kind", "width", "nodes", "draw_shape"),
    [
        ("stochastic_beam", 2, 4, draw_beam),
        ("stochastic_beam", 2, 3, partial(draw_beam, widths=(2, 1))),
        ("dynamic_tree", 3, 3, draw_dynamic_tree),
        ("dynamic_tree", 3, 5, partial(draw_dynamic_tree, nodes=5)),
    ],
)
def test_drafts_have_the_law_of_the_definition(
    kind: DraftSampling, width: int, nodes: int, draw_shape: DrawShape
) -> None:
    contexts = [context for length in range(2) for context in product(range(3), repeat=length)]
    q = {context: np.zeros(3) for context in contexts}
    for context in contexts:
        table = SOURCE.table((*TEXT, *context))
        for token, p in table.items():
            q[context][token] = p / sum(table.values())
    law: dict[Shape, float] = defaultdict(float)
    for draft, chance in enumerate_outcomes(lambda stream: draw_shape(q, stream)):
        law[read_shape(draft)] += float(chance)
    count = 4000
    drafts = draw_many(kind, width, nodes, count)
    counts = Counter(map(read_shape, drafts))
    assert set(counts) <= set(law)
    # Pearson's statistic has mean and variance of the degrees of freedom and twice these; five deviations are allowed.
    common = [shape for shape, chance in law.items() if chance * count >= 5]
    statistic = sum((counts[shape] - count * law[shape]) ** 2 / (count * law[shape]) for shape in common)
    assert len(common) > 8
    assert statistic < len(common) + 5 * (2 * len(common)) ** 0.5
    for draft in drafts[:50]:
        assert draft.sampling_record is not None
        assert draft.sampling_record.sampling == kind
        for node, (ids_K, q_K) in draft.sampling_record.draft_probs.items():
            np.testing.assert_allclose(q_K, q[tokens_after(draft, node)][ids_K], rtol=1e-5)


@pytest.mark.parametrize("kind", SELF_SHAPED)
def test_drafts_are_sound_and_within_their_plan(kind: DraftSampling) -> None:
    rng = random.Random(0)
    for _ in range(60):
        drafter = TreeDrafter(
            FakeSource(known=rng.randint(1, 8), scarce=rng.random() < 0.5), kind, width=rng.randint(1, 4), depth=4
        )
        branches = random_branches(rng, rng.randint(1, 5))
        total = rng.randint(0, 20)
        limits = tuple(rng.choice([0, 3, total]) for _ in branches)
        drafts = drafter.propose(branches, DraftPlan(limits, total))
        assert sum(map(len, drafts)) <= total
        for one, limit, draft in zip(branches, limits, drafts, strict=True):
            draft.assert_invariants()
            assert len(draft) <= limit
            assert max(draft.depths, default=0) <= min(one.remaining - 1, 4)
            levels = Counter(draft.depths)
            assert kind == "dynamic_tree" or max(levels.values(), default=0) <= drafter.width


def test_a_beam_has_its_width_on_every_level_while_nodes_last() -> None:
    (draft,) = draw_many("stochastic_beam", 3, 8, 1, depth=9)
    assert Counter(draft.depths) == {1: 3, 2: 3, 3: 2}


def test_the_nodes_of_dynamic_trees_go_where_they_are_likeliest_to_be_tried() -> None:
    """A branch whose next token is known gets a long path; one whose is not, siblings."""
    sure, unsure = FakeSource(vocabulary=2, known=1), FakeSource(vocabulary=16, known=16)
    chain = TreeDrafter(sure, "dynamic_tree", width=4, depth=9).propose([branch()], DraftPlan((6,), 6))[0]
    wide = TreeDrafter(unsure, "dynamic_tree", width=4, depth=9).propose([branch()], DraftPlan((6,), 6))[0]
    assert max(chain.depths) == 6
    assert max(wide.depths) < 6


@pytest.mark.parametrize("kind", SELF_SHAPED)
@pytest.mark.parametrize(
    "change",
    [
        lambda nodes: DraftPlan((nodes,), nodes, template=TreeTemplate.make_chain(3)),
        lambda nodes: DraftPlan((nodes,), nodes, CostEstimate.along_line(1.0, 0.1, nodes)),
    ],
)
def test_a_plan_that_chooses_among_drawn_tokens_is_refused(
    kind: DraftSampling, change: Callable[[int], DraftPlan]
) -> None:
    with pytest.raises(ValueError, match=f"draw={kind} has a shape of its own"):
        TreeDrafter(FakeSource(), kind).propose([branch()], change(4))

"""Draft trees: which nodes are in a draft, with and without a template."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core import Tokens
from decoding.noise import gumbel_noise, noise_keys
from decoding.speculation.draft import Draft, DraftSampling, TreeTemplate
from decoding.speculation.drafters.calibration import calibrated_probability, calibration_bucket
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan
from tests.support.draft_sources import (
    DRAWS,
    PRUNABLE,
    FakeSource,
    branch,
    paths,
    random_branches,
    random_template,
    set_calibration,
)
from tests.support.enumeration import filtered_distribution
from tests.support.streams import BranchStream


def line(round_seconds: float, seconds_per_node: float) -> CostEstimate:
    """Duration of rounds of up to 60 nodes, each of which takes as long."""
    return CostEstimate.along_line(round_seconds, seconds_per_node, 60)


STAIRS = CostEstimate(0.1 + 0.06 * np.ceil(np.arange(61) / 7) + 0.001 * np.arange(61), (*range(0, 60, 7), 60))
"""Duration of rounds that are filled up to 7, 14, ... nodes."""


@pytest.mark.parametrize("draw", DRAWS)
def test_drafts_are_sound_and_within_their_plan(draw: DraftSampling) -> None:
    """A token drawn twice at one parent used to get the lesser chance of the two, and children above it."""
    rng = random.Random(0)
    for seed in range(150):
        source = FakeSource(known=rng.randint(1, 8), scarce=rng.random() < 0.5)
        drafter = set_calibration(TreeDrafter(source, draw, width=rng.randint(1, 4), depth=rng.randint(1, 6)), seed)
        branches = random_branches(rng, rng.randint(1, 5))
        template = random_template(rng, rng.randint(0, 12)) if draw not in PRUNABLE or seed % 2 else None
        nodes = tuple(rng.randint(0, 9) for _ in branches)
        plan = DraftPlan(nodes, sum(nodes), template=template)
        if template is None:
            total = rng.randint(1, 12)
            nodes = tuple(rng.choice([0, total]) for _ in branches)
            plan = DraftPlan(nodes, total, rng.choice([None, line(1.0, 0.01), line(1.0, 0.2)]))
        drafts = drafter.propose(branches, plan)
        assert len(drafts) == len(branches)
        assert sum(map(len, drafts)) <= plan.max_total
        for one, most, draft in zip(branches, nodes, drafts, strict=True):
            draft.assert_invariants()
            assert len(draft) <= most
            assert max(draft.depths, default=0) <= min(one.remaining - 1, drafter.depth)
            if plan.cost_estimate is not None:
                assert all(
                    reach > plan.cost_estimate.min_probability(len(branches)) for reach in draft.path_probabilities
                )
            assert (draft.sampling_record is not None) == (draw not in PRUNABLE and len(draft) > 0)


@pytest.mark.parametrize("draw", DRAWS)
def test_drafts_from_stand_are_sound_as_it_learns(draw: DraftSampling) -> None:
    drafter, drafted = TreeDrafter(Stand(max_order=3), draw, depth=5), 0
    stream, rng = BranchStream(seed=4), random.Random(4)
    for _ in range(50):
        branches = stream.next_round()
        template = random_template(rng, 12) if draw not in PRUNABLE or rng.random() < 0.5 else None
        drafts = drafter.propose(branches, DraftPlan((12,) * len(branches), 12 * len(branches), template=template))
        for draft in drafts:
            draft.assert_invariants()
        drafted += sum(map(len, drafts))
        drafter.observe(stream.commit_random(drafter.source, branches, drafts))
    assert drafted > 300


@pytest.mark.parametrize("draw", DRAWS)
def test_no_branches_give_no_drafts(draw: DraftSampling) -> None:
    """A round of nothing but prompts; a controller that plans by rows may have some to spare."""
    drafter = TreeDrafter(FakeSource(), draw)
    assert drafter.propose([], DraftPlan((), 5, template=TreeTemplate.make_chain(3))) == []
    drafter.observe([])


def test_no_rows_for_anybody_is_no_draft() -> None:
    for template in (None, TreeTemplate.make_chain(3)):
        assert TreeDrafter(FakeSource()).propose([branch()], DraftPlan((0,), 0, template=template)) == [Draft()]


class TestBestFirst:
    """Against enumeration of all possible draft nodes."""

    @staticmethod
    def children(source: FakeSource, drafter: TreeDrafter, one: Branch, text: Tokens) -> dict[int, float]:
        """Every child of a context and its estimated chance, in the order drawn."""
        table, params, cold = source.table(text), one.params, one.params.temperature == 0
        if not table:
            return {}
        ids, logp = np.array(list(table)), np.log(list(table.values()))
        q = np.exp(logp - logp[0]) / np.exp(logp - logp[0]).sum() if cold else filtered_distribution(logp, params)
        ids, q = ids[q > 0], q[q > 0]
        scores = np.log(q)
        if drafter.draw == "coupled" and not cold:
            keys = torch.from_numpy(noise_keys([one.seed], [len(text)]))
            scores = scores + gumbel_noise(keys, torch.from_numpy(ids))[0].numpy()
        chance = np.exp(scores - scores.max())
        chance = chance / chance.sum() if drafter.draw == "coupled" else q
        hits, trials, probabilities = drafter.calibration.hits, drafter.calibration.trials, {}
        for rank, k in enumerate(np.argsort(-scores, kind="stable")[: drafter.width]):
            kind = calibration_bucket(text[-1] % 3, rank, float(chance[k]))
            probabilities[int(ids[k])] = calibrated_probability(hits, trials, kind, float(chance[k]))
        return probabilities

    def everything(
        self, source: FakeSource, drafter: TreeDrafter, branches: Sequence[Branch]
    ) -> dict[tuple[int, Tokens], float]:
        reachable: dict[tuple[int, Tokens], float] = {}
        for b, one in enumerate(branches):
            above: dict[Tokens, float] = {(): 1.0}
            for _ in range(min(drafter.depth, one.remaining - 1)):
                above = {
                    (*path, token): reach * chance
                    for path, reach in above.items()
                    for token, chance in self.children(source, drafter, one, one.tokens[:] + path).items()
                }
                reachable |= {(b, path): reach for path, reach in above.items()}
        return reachable

    @pytest.mark.parametrize(("draw", "scarce"), product(PRUNABLE, [False, True]))
    def test_it_takes_the_likeliest_wherever_they_are(self, draw: DraftSampling, scarce: bool) -> None:
        rng = random.Random(1)
        for seed in range(40):
            source = FakeSource(scarce=scarce)
            drafter = TreeDrafter(source, draw, width=3, depth=4)
            if seed % 2:
                set_calibration(drafter, seed)
            branches = random_branches(rng, rng.randint(1, 4))
            total = rng.randint(1, 40)
            drafts = drafter.propose(branches, DraftPlan((total,) * len(branches), total))
            every = self.everything(source, drafter, branches)
            best = dict(sorted(every.items(), key=lambda item: -item[1])[:total])
            got = paths(drafts)
            assert len(got) == len(best)
            np.testing.assert_allclose(sorted(got.values()), sorted(best.values()), rtol=1e-3)
            for path, reach in got.items():  # the same nodes, but for ties
                assert reach == pytest.approx(every[path], rel=1e-3)

    @pytest.mark.parametrize("row_seconds", [0.003, 0.02, 0.1, 1.0])
    def test_it_takes_as_many_as_raise_tokens_per_second(self, row_seconds: float) -> None:
        """Of all numbers of nodes, the likeliest first, the one with the most tokens in the least time."""
        rng, price = random.Random(5), line(0.1, row_seconds)
        drafter = TreeDrafter(FakeSource(), "likely", width=3, depth=4)
        for _ in range(10):
            branches = [branch(tuple(rng.randrange(8) for _ in range(4)), seed) for seed in range(rng.randint(1, 4))]
            drafter.level_seconds = 0.0  # drafting takes no time
            got = paths(drafter.propose(branches, DraftPlan((30,) * len(branches), 30, price)))
            reach = sorted(self.everything(FakeSource(), drafter, branches).values(), reverse=True)[:30]
            rates = [(len(branches) + sum(reach[:n])) / (0.1 + row_seconds * n) for n in range(31)]
            assert len(got) == np.argmax(rates)

    def test_the_first_draft_is_no_measure_of_a_level(self) -> None:
        """It loads machine code: by its seconds no level would pay, and the next drafts would be short."""
        drafter, plan = TreeDrafter(FakeSource(), "likely", width=3, depth=4), DraftPlan((30,), 30)
        drafter.propose([branch((1, 2, 3))], plan)
        assert drafter.level_seconds == 0.0
        drafter.propose([branch((1, 2, 3))], plan)
        assert drafter.level_seconds > 0.0

    def test_a_branch_has_no_more_than_its_own_share(self) -> None:
        """What one may not have goes to the next likeliest of the others."""
        source, rng = FakeSource(), random.Random(2)
        drafter = TreeDrafter(source, "likely", width=3, depth=4)
        for _ in range(20):
            branches = [branch(tuple(rng.randrange(8) for _ in range(4)), seed) for seed in range(3)]
            nodes, total = (rng.randint(0, 6), rng.randint(0, 6), 40), 20
            got = paths(drafter.propose(branches, DraftPlan(nodes, total)))
            left, best = list(nodes), list[float]()
            for (b, _), reach in sorted(self.everything(source, drafter, branches).items(), key=lambda item: -item[1]):
                if left[b] and len(best) < total:
                    left[b] -= 1
                    best.append(reach)
            np.testing.assert_allclose(sorted(got.values(), reverse=True), best, rtol=1e-3)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("draw", PRUNABLE)
    def test_a_table_has_a_faster_way_to_the_same_drafts(self, draw: DraftSampling, seed: int) -> None:
        stream, rng, drafted = BranchStream(seed), random.Random(seed), 0
        fast, slow = (TreeDrafter(Stand(max_order=4), draw, width=3, depth=5) for _ in range(2))
        slow.table = None
        for _ in range(40):
            branches = stream.next_round()
            total = rng.randint(0, 40)
            nodes = tuple(rng.choice([total, rng.randint(0, 5)]) for _ in branches)
            plan = DraftPlan(
                nodes,
                total,
                rng.choice(
                    [None, line(0.1, 0.0), line(0.1, 0.002), line(0.1, 0.02), STAIRS, replace(STAIRS, keep_gain=0.9)]
                ),
            )
            slow.level_seconds = 0.0  # drafting takes no time
            drafts = fast.propose(branches, plan)
            got, expected = paths(drafts), paths(slow.propose(branches, plan))
            np.testing.assert_allclose(sorted(got.values()), sorted(expected.values()), rtol=1e-5)
            least = min(got.values(), default=0.0)  # of equals at the end either may take any
            assert all((got | expected)[path] == pytest.approx(least) for path in got.keys() ^ expected.keys())
            drafted += len(got)
            feedback = stream.commit_random(fast.source, branches, drafts)
            fast.observe(feedback)
            slow.observe(feedback)
        assert drafted > 200

    @pytest.mark.parametrize("draw", ["without_replacement", "iid"])
    def test_a_draw_that_rules_must_undo_is_refused(self, draw: DraftSampling) -> None:
        with pytest.raises(ValueError, match=f"draw={draw} may not be pruned .* needs a controller with a template"):
            TreeDrafter(FakeSource(), draw).propose([branch()], DraftPlan((4,), 4))


class TestTemplateTrees:
    SHAPE = TreeTemplate((-1, -1, 0, 0, 1, 2, 0), (0, 1, 0, 1, 0, 0, 2))

    def test_it_is_filled_by_rank(self) -> None:
        source = FakeSource()
        (draft,) = TreeDrafter(source, "likely").propose([branch((1, 2, 3))], DraftPlan((7,), 7, template=self.SHAPE))

        def best(*text: int) -> list[int]:
            return list(source.table(text))

        a, b = best(1, 2, 3)[:2]
        c, d, e = best(2, 3, a)[:3]
        assert draft.tokens == (a, b, c, d, e, best(2, 3, b)[0], best(3, a, c)[0])
        assert draft.parents == (-1, -1, 0, 0, 0, 1, 2)
        assert draft.path_probabilities[0] == pytest.approx(
            source.table((1, 2, 3))[a] / sum(source.table((1, 2, 3)).values())
        )

    @pytest.mark.parametrize("nodes", range(8))
    def test_its_first_nodes_are_a_template_too(self, nodes: int) -> None:
        whole, cut = (
            TreeDrafter(FakeSource(), "likely").propose([branch()], DraftPlan((n,), n, template=self.SHAPE))[0]
            for n in (7, nodes)
        )
        assert len(cut) == nodes
        first = sorted((self.SHAPE.parents[i], self.SHAPE.ranks[i]) for i in range(nodes))
        assert len(first) == len(cut)
        assert paths([cut]).items() <= paths([whole]).items()

    def test_a_context_that_knows_too_little_leaves_holes(self) -> None:
        (draft,) = TreeDrafter(FakeSource(known=1), "likely").propose(
            [branch()], DraftPlan((7,), 7, template=self.SHAPE)
        )
        assert draft.parents == (-1, 0, 1)

    def test_every_branch_has_its_own_number(self) -> None:
        plan = DraftPlan((0, 7, 2), 9, template=self.SHAPE)
        drafts = TreeDrafter(FakeSource(), "likely").propose([branch((i,) * 3) for i in range(3)], plan)
        assert [len(draft) for draft in drafts] == [0, 7, 2]
        alone = TreeDrafter(FakeSource(), "likely").propose([branch((1,) * 3)], DraftPlan((7,), 7, template=self.SHAPE))
        assert drafts[1] == alone[0]

    def test_no_deeper_than_the_branch_or_the_drafter_goes(self) -> None:
        plan = DraftPlan((9,), 9, template=TreeTemplate.make_chain(9))
        assert len(TreeDrafter(FakeSource()).propose([branch(remaining=5)], plan)[0]) == 4
        assert len(TreeDrafter(FakeSource(), depth=3).propose([branch()], plan)[0]) == 3
        assert len(TreeDrafter(FakeSource()).propose([branch(remaining=1)], plan)[0]) == 0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"width": 0}, "width must be an int >= 1, got 0"),
        ({"depth": 2.0}, "depth must be an int >= 1, got 2.0"),
        (
            {"draw": "lucky"},
            "draw must be one of likely, coupled, without_replacement, iid, stochastic_beam, dynamic_tree; got 'lucky'",
        ),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreeDrafter(FakeSource(), **knobs)


def test_a_source_that_only_ranks_is_drawn_from_by_rank() -> None:
    with pytest.raises(ValueError, match="TokenRecycling only ranks its candidates: draw must be likely, got coupled"):
        TreeDrafter(TokenRecycling())
    TreeDrafter(TokenRecycling(), "likely")

"""Acceptance probabilities learned from outcomes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from decoding.speculation.draft import Draft, TreeTemplate
from decoding.speculation.drafters.calibration import AcceptanceCalibration, calibrated_probability, calibration_bucket
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import DraftPlan, Feedback
from tests.support.draft_sources import MOST, FakeSource, branch


class TestCalibration:
    @pytest.mark.parametrize(("rate", "first"), product([0.05, 0.5, 0.97], [0.01, 0.5, 0.99]))
    def test_it_converges_to_the_rate_and_follows_it(self, rate: float, first: float) -> None:
        rng, counts, kind = np.random.default_rng(0), AcceptanceCalibration(), calibration_bucket(3, 1, first)
        assert calibrated_probability(counts.hits, counts.trials, kind, first) == pytest.approx(first)
        for truth in (rate, 1 - rate):
            for _ in range(600):
                counts.observe(np.full(20, kind), rng.random(20) < truth)
            assert calibrated_probability(counts.hits, counts.trials, kind, first) == pytest.approx(truth, abs=0.03)

    def test_kinds_are_apart(self) -> None:
        counts = AcceptanceCalibration()
        counts.observe(np.full(1000, calibration_bucket(3, 1, 0.5)), np.ones(1000, dtype=bool))
        for other in (calibration_bucket(2, 1, 0.5), calibration_bucket(3, 0, 0.5), calibration_bucket(3, 1, 0.05)):
            assert calibrated_probability(counts.hits, counts.trials, other, 0.4) == pytest.approx(0.4)
        assert calibrated_probability(counts.hits, counts.trials, calibration_bucket(3, 1, 0.5), 0.5) == MOST

    def test_every_kind_has_a_place_of_its_own(self) -> None:
        kinds = {
            calibration_bucket(trust, rank, chance)
            for trust in range(16)
            for rank in range(9)
            for chance in np.linspace(0, 1, 99)
        }
        assert 0 <= min(kinds) < max(kinds) < len(AcceptanceCalibration().trials)
        assert len(kinds) > 16 * 4 * 6

    def test_only_nodes_below_an_accepted_parent_count(self) -> None:
        r"""   -1
              /  \
             0    1      0 and 2 are accepted; 3 is reached and rejected, 4 is not reached
            / \    \
           2   3    4
        """
        shape = TreeTemplate((-1, -1, 0, 0, 1), (0, 1, 0, 1, 0))
        drafter = TreeDrafter(FakeSource(), "likely")
        for accepted, tried, right in (((0, 2), 4, 2), ((0,), 4, 1), ((1,), 3, 1), ((1, 4), 3, 2), ((), 2, 0)):
            before = drafter.calibration.trials.sum(), drafter.calibration.hits.sum()
            (draft,) = drafter.propose([branch()], DraftPlan((5,), 5, template=shape))
            assert draft.parents == (-1, -1, 0, 0, 1)
            drafter.observe([Feedback(branch(), draft, accepted), Feedback(branch(), Draft(), ())])
            assert drafter.calibration.trials.sum() - before[0] == pytest.approx(tried, abs=0.1)
            assert drafter.calibration.hits.sum() - before[1] == pytest.approx(right, abs=0.1)

    def test_several_drafts_at_once_are_not_mixed_up(self) -> None:
        drafter, single = TreeDrafter(FakeSource(), "likely"), TreeDrafter(FakeSource(), "likely")
        branches = [branch((i, 2, 3)) for i in range(4)]
        drafts = drafter.propose(branches, DraftPlan((5,) * 4, 20, template=TreeTemplate.make_chain(5)))
        accepted_paths = [(), (0, 1, 2), (0,), (0, 1, 2, 3, 4)]
        feedback = [Feedback(b, d, k) for b, d, k in zip(branches, drafts, accepted_paths, strict=True)]
        drafter.observe(feedback)
        for one in feedback:
            single.observe([one])
        np.testing.assert_allclose(drafter.calibration.trials, single.calibration.trials, rtol=1e-2)
        np.testing.assert_allclose(drafter.calibration.hits, single.calibration.hits, rtol=1e-2)
        assert drafter.calibration.hits.sum() == pytest.approx(9, abs=0.1)
        assert drafter.calibration.trials.sum() == pytest.approx(1 + 4 + 2 + 5, abs=0.1)

    def test_a_draft_without_labels_is_not_observed(self) -> None:
        drafter = TreeDrafter(FakeSource())
        drafter.observe([Feedback(branch(), Draft((1, 2), (-1, 0)), (0,))])
        assert drafter.calibration.trials.sum() == 0
        assert isinstance(drafter.source, FakeSource)
        assert len(drafter.source.received) == 1

"""The matrix is a dictionary from token to the target's last ranking after it."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core import SamplingParams
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.draft import Draft, TreeTemplate
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan, Feedback
from tests.support.draft_sources import FakeSource, paths
from tests.support.streams import BranchStream


def test_equals_a_dictionary_of_the_latest_rows() -> None:
    source, stream = TokenRecycling(k=4), BranchStream(seed=0, vocabulary=50)
    last: dict[int, list[int]] = {}
    for _ in range(40):
        branches = stream.next_round()
        levels, drafts = stream.walk_source(source, branches)
        for level in levels:
            for context, ids in zip(level.contexts, level.next_tokens.ids_FK.tolist(), strict=True):
                assert ids == last.get(context[-1], [-1] * 4)
        feedback = stream.commit_random(source, branches, drafts)
        source.observe(feedback)
        for one in feedback:
            for token, ids in zip(
                (one.branch.tokens[-1], *one.draft.tokens), one.top_tokens()[0].tolist(), strict=True
            ):
                last[token] = ids


def test_refused_rows_count_and_of_a_token_fed_twice_the_last_row_counts() -> None:
    source = TokenRecycling(k=2)
    branch = Branch(0, "", (1, 2), 0, SamplingParams(), 9)
    draft = Draft((3, 2, 4), (-1, 0, 0))
    top = np.array([[10, 11], [12, 13], [14, 15], [16, 17]])
    source.observe([Feedback(branch, draft, (), top, -top.astype(np.float32))])
    assert source.next_tokens(np.array([2, 3, 4, 1, 99])).ids_FK.tolist() == [
        [14, 15],
        [12, 13],
        [16, 17],
        [-1, -1],
        [-1, -1],
    ]


def test_memory_is_bounded_by_the_largest_id() -> None:
    source = TokenRecycling()
    for _ in BranchStream(seed=1, vocabulary=100).run_rounds(source, 100):
        pass
    assert source.size_bytes <= 2 * 100 * 8 * 4


def test_a_wrong_k_is_named() -> None:
    with pytest.raises(ValueError, match="k must be an int >= 1, got 0"):
        TokenRecycling(k=0)


class TestItsPublishedTree:
    """Controllers that say how many nodes there are choose them from the published tree."""

    @staticmethod
    def propose(plan: DraftPlan, template: str | None = "token_recycling") -> Draft:
        source = TokenRecycling()
        # every token is followed by 8 others, of which each is fed once
        tokens = tuple(range(30))
        draft = Draft(tokens, tuple(range(-1, 29)))
        following = np.array([[(7 * row + rank + 1) % 30 for rank in range(8)] for row in range(31)])
        branch = Branch(0, "", (29,), 0, SamplingParams(), 99)
        source.observe([Feedback(branch, draft, (), following, -following.astype(np.float32))])
        drafter = TreeDrafter(source, "likely", width=4, template=template)
        return drafter.propose([branch], plan)[0]

    def test_with_room_for_all_it_is_the_templates_draft(self) -> None:
        template = TemplateController("token_recycling").template
        whole = self.propose(DraftPlan((80,), 80, template=template), template=None)
        assert len(whole) == 80
        by_controller = self.propose(DraftPlan((80,), 80))
        assert sorted(paths([by_controller])) == sorted(paths([whole]))
        assert sorted(paths([self.propose(DraftPlan((80,), 80), template=None)])) != sorted(paths([whole]))

    def test_with_less_room_it_is_the_likeliest_part_of_it(self) -> None:
        whole = paths([self.propose(DraftPlan((80,), 80))])
        for nodes in (1, 8, 30):
            some = paths([self.propose(DraftPlan((nodes,), nodes))])
            assert len(some) == nodes
            assert some.items() <= whole.items()
            assert sorted(some.values()) == sorted(whole.values())[-nodes:]

    def test_as_many_as_raise_the_rate(self) -> None:
        cheap, dear = (CostEstimate.along_line(1.0, seconds, 80) for seconds in (1e-9, 0.3))
        assert len(self.propose(DraftPlan((80,), 80, cheap))) > len(self.propose(DraftPlan((80,), 80, dear)))

    def test_none_below_the_least_probability(self) -> None:
        whole = paths([self.propose(DraftPlan((80,), 80))])
        least = sorted(whole.values())[40]
        some = paths([self.propose(DraftPlan((80,), 80, least_probabilities=(least,)))])
        assert some == {path: reach for path, reach in whole.items() if reach > least}
        assert len(some) < 80

    def test_a_controllers_template_comes_first(self) -> None:
        draft = self.propose(DraftPlan((3,), 3, template=TreeTemplate.make_chain(3)))
        assert draft.parents == (-1, 0, 1)

    def test_random_draws_are_not_chosen_from_it(self) -> None:
        with pytest.raises(ValueError, match="template must be null with draw=iid"):
            TreeDrafter(FakeSource(), "iid", template="stand")
        with pytest.raises(ValueError, match="there is no stond"):
            TreeDrafter(FakeSource(), template="stond")

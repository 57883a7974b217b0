"""Drafts end where the drafter is not confident; what is accepted moves how confident it must be."""

from __future__ import annotations

import random
from typing import Any

import pytest

from decoding.speculation.controllers.confidence import ConfidenceController
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import BatchLoad, Branch, Feedback
from tests.support.draft_sources import FakeSource, branch, random_branches
from tests.support.streams import BranchStream

LOAD = BatchLoad(4, 0, 100, 1000)
TREE = Draft((5, 6, 7, 8), (-1, 0, 0, 2))  # 5 -> 6, 5 -> 7 -> 8


def learn(controller: ConfidenceController, one: Branch, *paths: tuple[int, ...]) -> float:
    for path in paths:
        controller.observe([Feedback(one, TREE, path)], None)
    return controller.triggers[one.request_id]


def test_trigger_loosens_after_a_draft_accepted_to_its_end_and_tightens_after_others() -> None:
    controller, one = ConfidenceController(first=0.2, lowest=0.05, highest=0.8, step=0.5), branch()
    for whole in ((0, 1), (0, 2, 3)):
        assert learn(controller, one, whole) == 0.1
        controller.triggers.clear()
    for refused in ((), (0,), (0, 2)):
        assert learn(controller, one, refused) == 0.4
        controller.triggers.clear()
    assert learn(controller, one, (), (), (), ()) == 0.8, "not above the highest"
    assert learn(controller, one, *[(0, 1)] * 9) == 0.05, "not below the lowest"


def test_a_branch_without_drafts_is_not_given_up() -> None:
    controller, one = ConfidenceController(), branch()
    learn(controller, one, (), (), ())
    for _ in range(9):
        controller.observe([Feedback(one, Draft(), ())], None)
    assert controller.plan_drafts([one], LOAD).least_probabilities == (controller.lowest,)


@pytest.mark.parametrize("taught", [False, True], ids=["level by level", "from a table"])
def test_no_node_is_less_likely_than_its_branch_must_be(taught: bool) -> None:
    rng, num_nodes, sizes = random.Random(0), 0, list[int]()
    source: DraftSource = FakeSource(known=5)
    if taught:
        source = Stand()
        for _ in BranchStream(seed=1, vocabulary=8).run_rounds(source, 30):
            pass
    drafter, controller = TreeDrafter(source, "likely", width=4), ConfidenceController(longest=200)
    for _ in range(20):
        branches = [
            Branch(i, "problem 0", one.tokens, one.seed, one.params, 100)
            for i, one in enumerate(random_branches(rng, 3))
        ]
        controller.triggers = {one.request_id: rng.choice([0.02, 0.2, 0.6]) for one in branches}
        plan = controller.plan_drafts(branches, LOAD)
        for one, draft in zip(branches, drafter.propose(branches, plan), strict=True):
            trigger = controller.triggers[one.request_id]
            assert all(p >= trigger for p in draft.path_probabilities)
            num_nodes += len(draft)
            if trigger == 0.02:
                sizes.append(len(draft))
    assert num_nodes > 50
    assert max(sizes) > 8, "a loose trigger lets long drafts through"


def test_nodes_are_within_the_spare_tokens() -> None:
    branches = [branch((1, 2), i) for i in range(3)]
    plan = ConfidenceController(longest=16).plan_drafts(branches, BatchLoad(3, 0, 9, 10))
    assert plan.max_total == 10
    assert ConfidenceController(longest=0).plan_drafts(branches, LOAD).max_total == 0


def test_memory_of_branches_is_bounded() -> None:
    controller = ConfidenceController()
    for i in range(5000):
        controller.observe([Feedback(branch((1,), i), TREE, ())], None)
    assert len(controller.triggers) == 4096
    assert 4999 in controller.triggers


def test_wrong_knobs_are_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"longest": -1}, "longest must be an int >= 0, got -1"),
        ({"step": 1.0}, r"step must be in \(0, 1\), got 1.0"),
        ({"lowest": 0.0}, r"lowest must be in \(0, 1\), got 0.0"),
        ({"first": 0.95}, "first must be from lowest=0.01 to highest=0.9, got 0.95"),
    ]
    for knobs, message in wrong:
        with pytest.raises(ValueError, match=message):
            ConfidenceController(**knobs)

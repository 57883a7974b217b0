"""Trees of constant branching factors, delayed trees, and the selector among the latter."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.speculation.controllers.branching import BranchingController
from decoding.speculation.controllers.cost_curve import CalibratedCost
from decoding.speculation.controllers.delayed import DelayedController, make_delayed
from decoding.speculation.controllers.delayed_selector import DelayedSelector
from decoding.speculation.draft import Draft, TreeTemplate
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback, RoundCost
from tests.support.draft_sources import PRUNABLE, FakeSource, paths, random_branches, random_template
from tests.support.simulated_machine import AMPLE, branches, spare


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_node_of_a_depth_has_as_many_children(factors: list[int]) -> None:
    template = BranchingController(tuple(factors)).template
    depths = Draft(tuple(range(len(template))), template.parents).depths
    for depth, factor in enumerate(factors):
        level = [node for node in range(len(template)) if depths[node] == depth] if depth else [-1]
        assert all(template.parents.count(node) == factor for node in level)
    assert max(depths) == len(factors)


@given(st.integers(0, 4), st.integers(1, 4), st.integers(0, 4))
def test_a_delayed_tree_is_a_path_and_paths_below_it(trunk: int, count: int, length: int) -> None:
    template = make_delayed(trunk, count, length)
    assert len(template) == trunk + count * length
    children = [template.parents.count(node) for node in range(-1, len(template))]
    forks = [node for node, number in enumerate(children, start=-1) if number > 1]
    assert forks == ([trunk - 1] if count > 1 and length else [])


@pytest.mark.parametrize("draw", PRUNABLE)
def test_branches_may_have_templates_of_their_own(draw: Any) -> None:
    """Each gets what it would get if all had its template."""
    rng = random.Random(3)
    for _ in range(20):
        drafter = TreeDrafter(FakeSource(), draw, depth=6)
        running = random_branches(rng, 4)
        shapes = tuple(random_template(rng, rng.randint(0, 9)) for _ in running)
        sizes = tuple(rng.randint(0, len(shape)) for shape in shapes)
        drafts = drafter.propose(running, DraftPlan(sizes, max(1, sum(sizes)), own_templates=shapes))
        for b, (draft, size) in enumerate(zip(drafts, sizes, strict=True)):
            draft.assert_invariants()
            assert len(draft) <= size
            alone = drafter.propose(running, DraftPlan(sizes, max(1, sum(sizes)), template=shapes[b]))[b]
            assert paths([draft]) == paths([alone])


def feed(selector: DelayedSelector, rate: float, rounds: int = 300, request: int = 0) -> None:
    """Outcomes of drafts whose draws are each accepted with probability `rate`, independently."""
    rng = random.Random(1)
    (one,) = branches(1)
    template = make_delayed(2, 3, 2)
    draft = Draft(tuple(range(len(template))), template.parents)
    for _ in range(rounds):
        path: list[int] = []
        node = -1
        while children := [child for child, parent in enumerate(draft.parents) if parent == node]:
            passed = [child for child in children if rng.random() < rate]
            if not passed:
                break
            node = passed[0]
            path.append(node)
        selector.observe([Feedback(one, draft, tuple(path))], None)


def machine(seconds_per_node: float) -> DelayedSelector:
    selector = DelayedSelector()
    costs = [RoundCost(1, 1 + n, 10, 1.0 + seconds_per_node * n) for n in (0, 1, 2, 4, 8, 16, 32, 64) for _ in range(3)]
    selector.calibrate_cost(costs)
    return selector


def planned_nodes(selector: DelayedSelector) -> int:
    return selector.plan_drafts(branches(1), AMPLE).max_nodes[0]


def test_it_drafts_more_where_more_is_accepted_and_nodes_are_cheap() -> None:
    sizes = {}
    for seconds in (0.001, 0.2):
        for rate in (0.1, 0.9):
            selector = machine(seconds)
            feed(selector, rate)
            sizes[seconds, rate] = planned_nodes(selector)
    assert sizes[0.2, 0.1] == 1
    assert sizes[0.2, 0.1] <= sizes[0.2, 0.9] < sizes[0.001, 0.9]
    assert sizes[0.001, 0.1] > sizes[0.2, 0.1]


def test_its_estimate_is_the_mean_of_the_outcomes() -> None:
    """Independent draws of a fork: 1 - (1 - a)^3 of the forks pass, which is learned and not assumed."""
    rate = 0.6
    selector = DelayedSelector(longest=2, paths=3, first=0.3, smoothing=0.005)
    feed(selector, rate, rounds=3000)
    learned = next(iter(selector.acceptance_rates.values()))
    assert learned == pytest.approx(rate, abs=0.06)
    fork = 1 - (1 - rate) ** 3
    exact = rate + rate**2 + rate**2 * fork * (1 + rate)
    # the largest of its shapes, (2, 3, 2), is the draft of these outcomes
    assert selector.expected_tokens(learned).max() == pytest.approx(exact, rel=0.1)


def test_every_branch_has_a_shape_that_fits() -> None:
    for rows in range(20):
        plan = DelayedSelector().plan_drafts(branches(3), spare(rows))
        assert plan.max_total <= rows
        assert plan.max_total == 0 or plan.max_nodes == tuple(map(len, plan.templates))
    assert DelayedSelector().plan_drafts([], AMPLE).max_nodes == ()
    assert isinstance(DelayedSelector(), CalibratedCost)


def test_memory_is_bounded() -> None:
    selector = DelayedSelector()
    draft = Draft((1,), (-1,))
    for first in range(0, 6000, 50):
        running = [Branch(first + i, *one[1:]) for i, one in enumerate(branches(50))]
        selector.observe([Feedback(one, draft, ()) for one in running], None)
    assert len(selector.acceptance_rates) <= 4096


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BranchingController(()), "factors must make 1 to 1024 nodes"),
        (lambda: BranchingController((2, 0)), r"factors\[1\] must be an int >= 1, got 0"),
        (lambda: BranchingController((64, 64)), "factors must make 1 to 1024 nodes"),
        (lambda: DelayedController(trunk=-1), "trunk must be an int >= 0"),
        (lambda: DelayedController(paths=0), "paths must be an int >= 1"),
        (lambda: DelayedSelector(longest=0), "longest must be an int >= 1"),
        (lambda: DelayedSelector(first=1.0), r"first must be in \(0, 1\), got 1.0"),
    ],
)
def test_nonsense_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_static_tree_is_the_same_for_all() -> None:
    plan = DelayedController(1, 2, 2).plan_drafts(branches(2), AMPLE)
    assert plan.max_nodes == (5, 5)
    assert plan.template == TreeTemplate((-1, 0, 0, 1, 2), (0, 0, 1, 0, 0))

"""A budget is never exceeded, and the remaining budget alone limits new requests."""

from __future__ import annotations

import random

import pytest

from decoding.core import Usage
from search.budget import BudgetTracker
from search.strategy import Budget


def test_budget_tracker_without_a_budget_reserves_everything() -> None:
    assert BudgetTracker(Budget()).reserve(3, max_tokens=9) == [9, 9, 9]


def test_budget_tracker_counts_calls() -> None:
    tracker = BudgetTracker(Budget(calls=3))
    assert len(tracker.reserve(2, max_tokens=9)) == 2
    tracker.commit(9, Usage(calls=1))
    assert len(tracker.reserve(2, max_tokens=9)) == 1
    tracker.commit(9, Usage(calls=1))
    tracker.commit(9, Usage(calls=1))
    assert tracker.reserve(2, max_tokens=9) == []
    assert (tracker.num_reserved, tracker.usage.calls) == (0, 3)


def test_budget_tracker_reserves_nothing_after_its_fixed_deadline() -> None:
    now = 100.0
    tracker = BudgetTracker(Budget(seconds=5), clock=lambda: now)
    assert tracker.deadline == 105.0
    assert tracker.reserve(1, max_tokens=9) == [9]
    now = 105.0
    assert tracker.reserve(1, max_tokens=9) == []
    assert tracker.usage.seconds == 5.0


@pytest.mark.parametrize("seed", range(30))
def test_forward_budget_holds_and_allows_more_tokens_where_a_forward_gives_several(seed: int) -> None:
    rng = random.Random(seed)
    budget, per_pass = rng.randrange(10, 200), rng.randrange(1, 5)
    tracker = BudgetTracker(Budget(forwards=budget))
    while limits := tracker.reserve(rng.randrange(1, 6), max_tokens=rng.randrange(1, 40)):
        for limit in limits:
            tracker.commit(limit, Usage(calls=1, tokens=limit, forwards=-(-limit // per_pass)))
        assert tracker.usage.forwards <= budget
    assert tracker.usage.forwards == budget
    assert tracker.usage.tokens >= budget * (per_pass + 1) / 2 or per_pass == 1


@pytest.mark.parametrize("seed", range(100))
def test_token_budget_holds_and_is_used_up_whatever_the_usage_and_overlap(seed: int) -> None:
    rng = random.Random(seed)
    budget, max_tokens = rng.randrange(1, 300), rng.randrange(1, 80)
    tracker = BudgetTracker(Budget(tokens=budget))
    running: list[int] = []
    while True:
        limits = tracker.reserve(rng.randrange(1, 10), max_tokens=max_tokens)
        assert all(1 <= limit <= max_tokens for limit in limits)
        running += limits
        if not running:
            break
        for _ in range(rng.randint(1, len(running))):
            limit = running.pop(rng.randrange(len(running)))
            tracker.commit(limit, Usage(calls=1, tokens=rng.randint(1, limit)))
            assert tracker.usage.tokens <= budget
    assert tracker.usage.tokens == budget


@pytest.mark.parametrize(
    "bad", [{"tokens": 0}, {"tokens": 1.5}, {"seconds": -1}, {"calls": True}, {"calls": "3"}, {"forwards": 0}]
)
def test_wrong_budget_is_named(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"budget.{next(iter(bad))}"):
        Budget(**bad)  # type: ignore[arg-type]

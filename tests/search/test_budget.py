"""A budget is never exceeded, and what is left decides alone what may be sent."""

from __future__ import annotations

import random

import pytest

from decoding.core import Spent
from search.budget import Ledger
from search.strategy import Budget


def test_without_a_budget_everything_is_granted() -> None:
    assert Ledger(Budget()).grant(3, max_tokens=9) == [9, 9, 9]


def test_calls_are_counted() -> None:
    ledger = Ledger(Budget(calls=3))
    assert len(ledger.grant(2, max_tokens=9)) == 2
    ledger.settle(9, Spent(calls=1))
    assert len(ledger.grant(2, max_tokens=9)) == 1
    ledger.settle(9, Spent(calls=1))
    ledger.settle(9, Spent(calls=1))
    assert ledger.grant(2, max_tokens=9) == []
    assert (ledger.under_way, ledger.spent.calls) == (0, 3)


def test_time_up_grants_nothing_and_the_deadline_is_fixed_at_the_start() -> None:
    now = 100.0
    ledger = Ledger(Budget(seconds=5), clock=lambda: now)
    assert ledger.deadline == 105.0
    assert ledger.grant(1, max_tokens=9) == [9]
    now = 105.0
    assert ledger.grant(1, max_tokens=9) == []
    assert ledger.spent.seconds == 5.0


@pytest.mark.parametrize("seed", range(30))
def test_a_budget_of_forwards_holds_and_lets_more_tokens_through_where_a_pass_gives_several(seed: int) -> None:
    rng = random.Random(seed)
    budget, per_pass = rng.randrange(10, 200), rng.randrange(1, 5)
    ledger = Ledger(Budget(forwards=budget))
    while granted := ledger.grant(rng.randrange(1, 6), max_tokens=rng.randrange(1, 40)):
        for grant in granted:
            ledger.settle(grant, Spent(calls=1, tokens=grant, forwards=-(-grant // per_pass)))
        assert ledger.spent.forwards <= budget
    assert ledger.spent.forwards == budget
    assert ledger.spent.tokens >= budget * (per_pass + 1) / 2 or per_pass == 1


@pytest.mark.parametrize("seed", range(100))
def test_a_token_budget_holds_and_is_used_up_whatever_the_requests_use_and_however_they_overlap(seed: int) -> None:
    rng = random.Random(seed)
    budget, max_tokens = rng.randrange(1, 300), rng.randrange(1, 80)
    ledger = Ledger(Budget(tokens=budget))
    under_way: list[int] = []
    while True:
        granted = ledger.grant(rng.randrange(1, 10), max_tokens=max_tokens)
        assert all(1 <= grant <= max_tokens for grant in granted)
        under_way += granted
        if not under_way:
            break
        for _ in range(rng.randint(1, len(under_way))):
            grant = under_way.pop(rng.randrange(len(under_way)))
            ledger.settle(grant, Spent(calls=1, tokens=rng.randint(1, grant)))
            assert ledger.spent.tokens <= budget
    assert ledger.spent.tokens == budget


@pytest.mark.parametrize(
    "bad", [{"tokens": 0}, {"tokens": 1.5}, {"seconds": -1}, {"calls": True}, {"calls": "3"}, {"forwards": 0}]
)
def test_a_wrong_budget_names_itself(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"budget.{next(iter(bad))}"):
        Budget(**bad)  # type: ignore[arg-type]

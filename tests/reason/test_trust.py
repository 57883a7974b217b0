"""Answers that are not likely to be right are marked: in the library, rows, summaries, the terminal and replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reason
from reason.trust import TrustRule

SURE, UNSURE = (
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "What is the remainder when 7^2 is divided by 5?",
)
"""Questions that the bundled model can do, and cannot: it was trained on the first kind."""

VOTES = st.dictionaries(st.sampled_from("123"), st.floats(0, 100), min_size=1)


@given(votes=VOTES, least=st.floats(0, 1))
def test_without_a_reward_model_the_share_of_the_votes_decides(votes: dict[str, float], least: float) -> None:
    total = sum(votes.values())
    for answer, weight in votes.items():
        trusted = TrustRule(least).judge(answer, 0.9, votes)
        assert trusted is None if total == 0 else trusted == (weight >= least * total)


@given(score=st.floats(0, 1), least=st.floats(0, 1), votes=VOTES)
def test_with_one_the_score_decides(score: float, least: float, votes: dict[str, float]) -> None:
    assert TrustRule(least, by_score=True).judge("1", score, votes) == (score >= least)
    assert TrustRule(least, by_score=True).judge("1", None, votes) is None


def test_no_answer_is_not_trusted_and_without_a_threshold_nothing_is_said() -> None:
    assert TrustRule(0.5).judge(None, None, {}) is False
    assert TrustRule(None).judge("1", 0.9, {"1": 1.0}) is None
    assert TrustRule(0.5).judge("1", -3.0, {"1": -3.0, "2": -4.0}) is None, "logarithms have no share"


def test_the_bundled_models_know_what_they_know() -> None:
    with reason.load("search.n=16") as solver:
        sure, unsure = solver.solve(SURE), solver.solve(UNSURE)
    assert (sure.answer, sure.is_trusted) == ("15", True)
    assert unsure.is_trusted is False


@pytest.mark.parametrize("value", ["2", "-1", "high"])
def test_a_wrong_threshold_is_refused_by_name(value: str) -> None:
    with pytest.raises(reason.ConfigError, match="trusted_score must be in"):
        reason.load(f"trusted_score={value}")

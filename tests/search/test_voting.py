"""Choice among solutions, by hand and against full counts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from search.voting import UNSCORED, VOTING_RULES, choose_solution, expected_gain, majority_error_bound, tally_votes


def test_majority_vote_counts_solutions_and_ignores_scores() -> None:
    choice = choose_solution(["1", "2", "2"], [0.9, 0.1, 0.2], "majority")
    assert choice.votes == {"1": 1.0, "2": 2.0}
    assert choice.index == 2  # the better scored of the two


def test_weighted_vote_sums_scores() -> None:
    assert choose_solution(["1", "2", "2"], [0.9, 0.4, 0.4], "weighted").index == 0
    assert choose_solution(["1", "2", "2"], [0.7, 0.4, 0.4], "weighted").index == 1


def test_best_rule_takes_the_highest_score_among_answers() -> None:
    assert choose_solution(["1", None, "2"], [0.3, 0.9, 0.4], "best").index == 2


def test_ties_go_to_the_first_solution() -> None:
    for rule in VOTING_RULES:
        assert choose_solution(["5", "4", "4", "5"], [0.5] * 4, rule).index == 0


def test_best_score_is_chosen_without_votes_where_no_solution_has_an_answer() -> None:
    for rule in VOTING_RULES:
        choice = choose_solution([None, None, None], [0.1, 0.8, None], rule)
        assert (choice.index, choice.votes) == (1, {})


def test_choice_of_no_solutions_has_no_index() -> None:
    assert choose_solution([], [], "majority").index is None


def test_missing_score_is_the_median_score_and_not_zero() -> None:
    assert tally_votes(["1", "2", "3", "3"], [None, 0.2, 0.4, 0.9], "weighted") == {"1": 0.4, "2": 0.2, "3": 1.3}
    assert tally_votes(["1", "2", "3", "3"], [None, 0.2, 0.4, 0.9], "best") == {"1": 0.4, "2": 0.2, "3": 0.9}


def test_scored_minority_does_not_overrule_solutions_without_scores() -> None:
    answers, scores = ["7", "8", "8", "8"], [0.2, None, None, None]
    for rule in VOTING_RULES:
        assert choose_solution(answers, scores, rule).index == 1
        assert choose_solution(answers[::-1], scores[::-1], rule).index == 0
    assert choose_solution(answers, scores, "weighted", "ignore").index == 0


def test_solutions_without_scores_have_no_vote_where_they_are_ignored() -> None:
    assert choose_solution(["1", "2"], [None, 0.0], "best", "ignore").index == 1
    assert tally_votes(["1", "2"], [None, 0.0], "weighted", "ignore") == {"2": 0.0}
    for unscored in UNSCORED:  # without any score there is nothing to ignore
        assert tally_votes(["1", "2", "2"], [None] * 3, "weighted", unscored) == {"1": 1.0, "2": 2.0}
    with pytest.raises(ValueError, match="unscored must be one of median, ignore"):
        tally_votes(["1"], [None], "best", "zero")


def test_every_rule_counts_solutions_where_no_solution_has_a_score() -> None:
    for rule in VOTING_RULES:
        assert tally_votes(["1", "2", "2"], [None] * 3, rule) == {"1": 1.0, "2": 2.0}


def test_unknown_rule_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="majority, weighted, best"):
        choose_solution([], [], "loudest")


@pytest.mark.parametrize("rule", VOTING_RULES)
def test_chosen_answer_has_most_votes_and_its_best_scored_solution(rule: str) -> None:
    rng = random.Random(rule)
    for _ in range(300):
        n = rng.randrange(1, 9)
        answers = [rng.choice(["1", "2", "3", None]) for _ in range(n)]
        scores = [rng.choice([None, 0.25, 0.5, 0.75]) for _ in range(n)]
        index, votes = (choice := choose_solution(answers, scores, rule)).index, choice.votes
        assert index is not None
        answer = answers[index]
        assert answer in votes or (answer is None and not votes)
        if answer is not None:
            assert votes[answer] == max(votes.values())
        same = [scores[i] for i in range(n) if answers[i] == answer]
        assert max((s for s in same if s is not None), default=None) == scores[index]


@pytest.mark.parametrize(("first", "second"), [(1, 0), (4, 1), (9, 3)])
def test_majority_error_bound_is_the_frequency_of_a_wrong_leader_over_random_shares(first: int, second: int) -> None:
    """Shares are uniform before the count, and kept where they give exactly this count."""
    rng = np.random.default_rng(first)
    shares = rng.random(400_000)
    posterior = shares[rng.binomial(first + second, shares) == first]
    assert majority_error_bound({"7": first, "8": second}) == pytest.approx((posterior < 0.5).mean(), abs=0.01)


@pytest.mark.parametrize(("first", "second", "others"), [(1, 1, 0), (2, 1, 5), (4, 0, 0), (6, 4, 3)])
def test_expected_gain_is_how_far_the_leader_is_behind_over_random_shares(first: int, second: int, others: int) -> None:
    rng = np.random.default_rng(first)
    shares = rng.random(400_000)
    posterior = shares[rng.binomial(first + second, shares) == first]
    behind = np.maximum(0, 1 - 2 * posterior).mean()
    votes, n = {"7": first, "8": second} | {f"{i}0": 1 for i in range(min(others, first))}, first + second + others
    assert expected_gain(votes, n) == pytest.approx((first + second) / n * behind / n, rel=0.05)


def test_vote_tally_does_not_depend_on_the_order_of_the_solutions() -> None:
    rng = random.Random(3)
    pairs = [(rng.choice("12"), rng.random()) for _ in range(50)]
    forwards = tally_votes([a for a, _ in pairs], [s for _, s in pairs], "weighted")
    backwards = tally_votes([a for a, _ in pairs[::-1]], [s for _, s in pairs[::-1]], "weighted")
    assert forwards == backwards

"""Formulas of Monte Carlo tree search: regret of the bounds, virtual losses, priors and progressive widening."""

from __future__ import annotations

import random

import pytest

from search.strategies.mcts_rules import SELECTION_RULES, ChildStats, max_children, select_child


class TestSelectChild:
    @pytest.mark.parametrize("rule", SELECTION_RULES)
    @pytest.mark.parametrize("seed", range(5))
    def test_best_arm_is_pulled_most_and_regret_grows_slower_than_pulls(self, rule: str, seed: int) -> None:
        rng, chances = random.Random(seed), [0.2, 0.5, 0.8, 0.4]
        arms, regret = [ChildStats() for _ in chances], {500: 0.0, 4000: 0.0}
        for pull in range(4000):
            chosen = select_child(arms, rule, exploration=1.0)
            arms[chosen].visits += 1
            arms[chosen].total_value += rng.random() < chances[chosen]
            for limit in regret:
                regret[limit] += (0.8 - chances[chosen]) * (pull < limit)
        assert max(range(4), key=lambda i: arms[i].visits) == 2
        assert arms[2].visits > 0.8 * 4000
        assert regret[4000] / 4000 < 0.5 * regret[500] / 500

    def test_initial_values_decide_before_any_visit(self) -> None:
        arms = [ChildStats(initial_value=0.3), ChildStats(initial_value=0.9), ChildStats(initial_value=0.9)]
        assert select_child(arms, "uct", 1.0) == 1

    def test_virtual_loss_leads_the_next_simulation_elsewhere(self) -> None:
        arms = [ChildStats(initial_value=0.9), ChildStats(initial_value=0.85)]
        arms[0].virtual_losses += 1
        assert select_child(arms, "uct", 1.0) == 1

    def test_exploration_of_zero_is_greedy_and_a_large_one_is_even(self) -> None:
        for exploration, least in ((0.0, 0), (1e6, 30)):
            arms = [ChildStats(initial_value=0.9), ChildStats(initial_value=0.5), ChildStats(initial_value=0.1)]
            for _ in range(99):
                arm = arms[select_child(arms, "uct", exploration)]
                arm.visits, arm.total_value = arm.visits + 1, arm.total_value + (arm.initial_value or 0.0)
            assert min(arm.visits for arm in arms) >= least
            assert (arms[0].visits == 99) == (exploration == 0)

    def test_puct_follows_the_prior(self) -> None:
        assert select_child([ChildStats(prior=0.1), ChildStats(prior=0.8)], "puct", 1.0) == 1

    def test_progressive_widening_grows_with_visits_up_to_its_cap(self) -> None:
        limits = [max_children(tries, 1.0, 0.5, limit=5) for tries in range(50)]
        assert limits == sorted(limits)
        assert (limits[0], limits[3], limits[-1]) == (1, 2, 5)
        assert max_children(0, 0.1, 0.5, limit=5) == 1

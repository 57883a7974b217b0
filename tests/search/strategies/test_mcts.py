"""MCTS: the bounds against a bandit with known optimum, widening, virtual loss, rollouts, and its end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from search.strategies.mcts import Mcts
from search.strategies.mcts_rules import RULES, Arm, best_arm, children_wanted
from search.strategy import Budget
from search.tree import SearchTree
from tests.search.test_level_search import children, long_winded
from tests.support.toy_search import ToyEngine, UnsteadyEngine, answer_of, run


class TestRules:
    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("seed", range(5))
    def test_a_bandits_best_arm_is_pulled_most_and_regret_grows_slower_than_pulls(self, rule: str, seed: int) -> None:
        rng, chances = random.Random(seed), [0.2, 0.5, 0.8, 0.4]
        arms, regret = [Arm() for _ in chances], {500: 0.0, 4000: 0.0}
        for pull in range(4000):
            chosen = best_arm(arms, rule, exploration=1.0)
            arms[chosen].visits += 1
            arms[chosen].total += rng.random() < chances[chosen]
            for limit in regret:
                regret[limit] += (0.8 - chances[chosen]) * (pull < limit)
        assert max(range(4), key=lambda i: arms[i].visits) == 2
        assert arms[2].visits > 0.8 * 4000
        assert regret[4000] / 4000 < 0.5 * regret[500] / 500

    def test_what_is_believed_decides_before_anything_was_tried(self) -> None:
        arms = [Arm(first=0.3), Arm(first=0.9), Arm(first=0.9)]
        assert best_arm(arms, "uct", 1.0) == 1

    def test_a_virtual_loss_sends_the_next_one_elsewhere(self) -> None:
        arms = [Arm(first=0.9), Arm(first=0.85)]
        arms[0].losses += 1
        assert best_arm(arms, "uct", 1.0) == 1

    def test_no_exploration_is_greedy_and_much_is_even(self) -> None:
        for exploration, least in ((0.0, 0), (1e6, 30)):
            arms = [Arm(first=0.9), Arm(first=0.5), Arm(first=0.1)]
            for _ in range(99):
                arm = arms[best_arm(arms, "uct", exploration)]
                arm.visits, arm.total = arm.visits + 1, arm.total + (arm.first or 0.0)
            assert min(arm.visits for arm in arms) >= least
            assert (arms[0].visits == 99) == (exploration == 0)

    def test_a_prior_draws_puct(self) -> None:
        assert best_arm([Arm(prior=0.1), Arm(prior=0.8)], "puct", 1.0) == 1

    def test_widening_grows_with_visits_up_to_its_cap(self) -> None:
        wanted = [children_wanted(tries, 1.0, 0.5, most=5) for tries in range(50)]
        assert wanted == sorted(wanted)
        assert (wanted[0], wanted[3], wanted[-1]) == (1, 2, 5)
        assert children_wanted(0, 0.1, 0.5, most=5) == 1


class TestSearch:
    def test_every_simulation_ends_with_a_solution_of_its_own(self) -> None:
        result = run(Mcts(n=12, branching=4), engine=ToyEngine(long_winded))
        finished = [candidate for candidate in result.candidates if candidate.answer is not None]
        assert len(finished) >= 12
        assert len({candidate.node for candidate in result.candidates}) == len(result.candidates)

    def test_no_node_has_more_children_than_it_may(self) -> None:
        for parallel in (1, 4, 16):
            result = run(Mcts(n=30, branching=3, parallel=parallel), engine=ToyEngine(long_winded))
            assert max(len(below) for below in children(result.tree).values()) <= 3

    def test_a_good_branch_gets_more_than_a_bad_one(self) -> None:
        result = run(Mcts(n=40, branching=4, exploration=0.3), engine=ToyEngine(long_winded))
        tree = result.tree
        first = children(tree)[SearchTree.ROOT]
        below = Counter(tree.path(i)[0] for i in range(len(tree)))
        best, worst = (pick(first, key=lambda i: tree.nodes[i].score or 0.0) for pick in (max, min))
        assert below[best] > below[worst]

    def test_several_are_under_way_at_once(self) -> None:
        class Counts(ToyEngine):
            now = most = 0

            async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(0.001)
                self.now -= 1
                return await super().generate(requests)

        alone, together = Counts(long_winded), Counts(long_winded)
        run(Mcts(n=16, parallel=1, widening=1.0), engine=alone)
        run(Mcts(n=16, parallel=8, widening=1.0), engine=together)
        assert alone.most == 1
        assert together.most >= 4

    @pytest.mark.parametrize("value", ["prm", "rollout"])
    @pytest.mark.parametrize("seed", range(10))
    def test_the_tree_does_not_depend_on_timing(self, value: str, seed: int) -> None:
        engines = (ToyEngine(long_winded), UnsteadyEngine(seed, long_winded))
        steady, moody = (run(Mcts(n=12, value=value), engine=engine) for engine in engines)
        assert steady.tree.to_dict() == moody.tree.to_dict()

    def test_rollouts_cost_fewer_calls_and_their_steps_are_nodes(self) -> None:
        calls = {value: run(Mcts(n=12, value=value), engine=ToyEngine(long_winded)) for value in ("prm", "rollout")}
        assert calls["rollout"].spent.calls < calls["prm"].spent.calls
        assert max(node.depth for node in calls["rollout"].tree.nodes) >= 5

    def test_a_small_world_is_explored_and_then_left(self) -> None:
        """One step, two children at most: three simulations have nothing to find."""
        result = run(Mcts(n=50, branching=2), engine=ToyEngine(lambda *_: "\\boxed{1}"))
        assert len(result.tree) == 2
        assert result.stopped == "done"

    @pytest.mark.parametrize("value", ["prm", "rollout"])
    @pytest.mark.parametrize("budget", [Budget(tokens=150), Budget(calls=7), Budget(tokens=1)])
    def test_a_budget_ends_it_with_what_there_is(self, value: str, budget: Budget) -> None:
        result = run(Mcts(n=50, value=value), engine=ToyEngine(long_winded), budget=budget)
        assert result.stopped == "budget"
        assert budget.tokens is None or result.spent.tokens <= budget.tokens
        assert budget.calls is None or result.spent.calls <= budget.calls

    @pytest.mark.parametrize("value", ["prm", "rollout"])
    def test_empty_steps_are_no_endless_loop(self, value: str) -> None:
        class Mute(ToyEngine):
            async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
                return [Generation(tokens=(), logprobs=(), finish="eos") for _ in requests]

        assert run(Mcts(n=9, value=value), engine=Mute()).best is None

    def test_depth_and_tokens_end_a_path(self) -> None:
        result = run(Mcts(n=6, depth=2), engine=ToyEngine(long_winded))
        assert max(node.depth for node in result.tree.nodes) == 2
        short = run(Mcts(n=6, sampling=SamplingParams(max_tokens=25)), engine=ToyEngine(long_winded))
        assert max(node.written for node in short.tree.nodes) < 25 + 25

    def test_it_solves(self) -> None:
        result = run(Mcts(n=8))
        assert result.best is not None
        assert answer_of(result.tree.text(result.best)) == max(result.votes, key=lambda answer: result.votes[answer])

    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"rule": "ucb"}, "rule must be one of uct, puct; got 'ucb'"),
            ({"value": "v"}, "value must be one of prm, rollout; got 'v'"),
            ({"exploration": -1}, "exploration must be a number >= 0, got -1"),
            ({"widening": 0}, "widening must be a number > 0, got 0"),
            ({"parallel": 0}, "parallel must be an int >= 1, got 0"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Mcts(**knobs)

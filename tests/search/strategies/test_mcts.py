"""MCTS as a search: simulations, widening, rollouts, and its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from search.strategies.mcts import Mcts
from search.strategy import Budget
from search.tree import SearchTree
from tests.support.toy_search import (
    ToyEngine,
    UnsteadyEngine,
    extract_answer,
    nodes_by_parent,
    run_search,
    write_five_steps,
)


class TestMcts:
    def test_every_simulation_ends_with_a_solution_of_its_own(self) -> None:
        result = run_search(Mcts(n=12, branching=4), engine=ToyEngine(write_five_steps))
        finished = [candidate for candidate in result.candidates if candidate.answer is not None]
        assert len(finished) >= 12
        assert len({candidate.node for candidate in result.candidates}) == len(result.candidates)

    def test_every_node_has_at_most_its_allowed_children(self) -> None:
        for parallel in (1, 4, 16):
            result = run_search(Mcts(n=30, branching=3, parallel=parallel), engine=ToyEngine(write_five_steps))
            assert max(len(below) for below in nodes_by_parent(result.tree).values()) <= 3

    def test_good_branch_gets_more_visits_than_a_bad_one(self) -> None:
        result = run_search(Mcts(n=40, branching=4, exploration=0.3), engine=ToyEngine(write_five_steps))
        tree = result.tree
        first = nodes_by_parent(tree)[SearchTree.ROOT]
        below = Counter(tree.path_nodes(i)[0] for i in range(len(tree)))
        best, worst = (pick(first, key=lambda i: tree.nodes[i].score or 0.0) for pick in (max, min))
        assert below[best] > below[worst]

    def test_several_simulations_run_at_once(self) -> None:
        class Counts(ToyEngine):
            now = most = 0

            async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(0.001)
                self.now -= 1
                return await super().generate(requests)

        alone, together = Counts(write_five_steps), Counts(write_five_steps)
        run_search(Mcts(n=16, parallel=1, widening=1.0), engine=alone)
        run_search(Mcts(n=16, parallel=8, widening=1.0), engine=together)
        assert alone.most == 1
        assert together.most >= 4

    @pytest.mark.parametrize("value", ["prm", "rollout"])
    @pytest.mark.parametrize("seed", range(10))
    def test_tree_does_not_depend_on_timing(self, value: str, seed: int) -> None:
        engines = (ToyEngine(write_five_steps), UnsteadyEngine(seed, write_five_steps))
        steady, moody = (run_search(Mcts(n=12, value=value), engine=engine) for engine in engines)
        assert steady.tree.to_dict() == moody.tree.to_dict()

    def test_rollouts_cost_fewer_calls_and_their_steps_are_nodes(self) -> None:
        calls = {
            value: run_search(Mcts(n=12, value=value), engine=ToyEngine(write_five_steps))
            for value in ("prm", "rollout")
        }
        assert calls["rollout"].usage.calls < calls["prm"].usage.calls
        assert max(node.depth for node in calls["rollout"].tree.nodes) >= 5

    def test_search_ends_when_a_small_tree_is_explored(self) -> None:
        """One step, two children at most: three simulations find no new solution."""
        result = run_search(Mcts(n=50, branching=2), engine=ToyEngine(lambda *_: "\\boxed{1}"))
        assert len(result.tree) == 2
        assert result.stop_reason == "done"

    @pytest.mark.parametrize("value", ["prm", "rollout"])
    @pytest.mark.parametrize("budget", [Budget(tokens=150), Budget(calls=7), Budget(tokens=1)])
    def test_search_ends_at_its_budget_with_its_candidates(self, value: str, budget: Budget) -> None:
        result = run_search(Mcts(n=50, value=value), engine=ToyEngine(write_five_steps), budget=budget)
        assert result.stop_reason == "budget"
        assert budget.tokens is None or result.usage.tokens <= budget.tokens
        assert budget.calls is None or result.usage.calls <= budget.calls

    @pytest.mark.parametrize("value", ["prm", "rollout"])
    def test_empty_steps_end_the_search(self, value: str) -> None:
        class Mute(ToyEngine):
            async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
                return [Generation(tokens=(), logprobs=(), finish="eos") for _ in requests]

        assert run_search(Mcts(n=9, value=value), engine=Mute()).best is None

    def test_depth_and_token_limits_end_a_path(self) -> None:
        result = run_search(Mcts(n=6, depth=2), engine=ToyEngine(write_five_steps))
        assert max(node.depth for node in result.tree.nodes) == 2
        short = run_search(Mcts(n=6, sampling=SamplingParams(max_tokens=25)), engine=ToyEngine(write_five_steps))
        assert max(node.num_path_tokens for node in short.tree.nodes) < 25 + 25

    def test_search_solves_toy_problems(self) -> None:
        result = run_search(Mcts(n=8))
        assert result.best is not None
        assert extract_answer(result.tree.path_text(result.best)) == max(
            result.votes, key=lambda answer: result.votes[answer]
        )

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
    def test_wrong_knobs_are_refused_by_name(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Mcts(**knobs)

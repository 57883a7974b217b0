"""Rollouts: exact ids, log-probabilities, segments and rewards, from which the tree can be built again."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import pytest

from search.strategies.inftythink import InftyThink
from search.strategies.pdr import Pdr
from search.strategies.rebase import Rebase
from search.strategy import SearchResult
from search.tree import Context, SearchTree, Step
from search.tree_export import RolloutTree, to_rollouts
from tests.support.scripted_notes import searching_writer, thinking_text
from tests.support.toy_search import ToyEngine, run_search


def searched(name: str) -> SearchResult:
    if name == "rebase":
        return run_search(Rebase(n=6))
    engine, text = ToyEngine(searching_writer(9)), thinking_text()
    strategy = InftyThink(n=2, think_tokens=60) if name == "inftythink" else Pdr(n=3, rounds=3)
    return run_search(strategy, engine=engine, problem_text=text)


def rewards_of(result: SearchResult) -> dict[int, float | None]:
    dice = random.Random(3)
    return {candidate.node: dice.choice([0.0, 1.0, None]) for candidate in result.candidates}


def rebuild_tree(made: RolloutTree) -> SearchTree:
    """The tree that a reader of the file can build; contexts hold all their ids."""
    first, *contexts = made["prompts"]
    saved = {
        "root": first["ids"],
        "nodes": [
            {"parent": s["parent"], "tokens": s["ids"], "text": "", "logprobs": s["logprobs"], "score": s["score"]}
            | {"finish": s["finish"]}
            for s in made["segments"]
        ],
        "contexts": [
            {"tokens": c["ids"], "text": "", "purpose": c["purpose"], "sources": c["sources"], "after": None}
            for c in contexts
        ],
    }
    return SearchTree.from_dict(saved)


@pytest.mark.parametrize("name", ["rebase", "inftythink", "pdr"])
def test_tree_can_be_built_again_and_each_path_is_whole(name: str) -> None:
    result = searched(name)
    tree = result.tree
    made: RolloutTree = json.loads(json.dumps(to_rollouts(tree, rewards_of(result))))
    again = rebuild_tree(made)
    assert [tree.prefix_tokens(node) for node in range(len(tree))] == [
        again.prefix_tokens(node) for node in range(len(tree))
    ]
    assert [(n.score, n.finish, n.step.logprobs) for n in tree.nodes] == [
        (n.score, n.finish, n.step.logprobs) for n in again.nodes
    ]
    assert {rollout["node"] for rollout in made["rollouts"]} >= set(tree.leaf_nodes())
    for rollout in made["rollouts"]:
        assert (*rollout["prompt_ids"], *rollout["response_ids"]) == tree.prefix_tokens(rollout["node"])
        assert rollout["segments"] == tree.path_nodes(rollout["node"])
        parts = [rollout["response_ids"][a:b] for a, b in pairwise([0, *rollout["segment_ends"]])]
        assert parts == [made["segments"][i]["ids"] for i in rollout["segments"]]
        assert len(rollout["response_mask"]) == len(rollout["response_logprobs"] or ()) == len(rollout["response_ids"])


@pytest.mark.parametrize("name", ["rebase", "inftythink", "pdr"])
def test_value_of_a_segment_is_the_mean_reward_of_the_solutions_that_need_it(name: str) -> None:
    result = searched(name)
    rewards = rewards_of(result)
    made = to_rollouts(result.tree, rewards)

    def needs(node: int, segment: int) -> bool:
        context = result.tree.find_context(node)
        sources = () if context is None else context.sources
        return segment in result.tree.path_nodes(node) or any(needs(source, segment) for source in sources)

    for segment in made["segments"]:
        given = [reward for node, reward in rewards.items() if reward is not None and needs(node, segment["id"])]
        assert segment["value"] == (pytest.approx(sum(given) / len(given)) if given else None)
    for rollout in made["rollouts"]:
        value = made["segments"][rollout["node"]]["value"]
        assert rollout["is_solution"] == (rollout["node"] in rewards)
        assert rollout["reward_score"] == (rewards[rollout["node"]] if rollout["is_solution"] else value)


def test_text_that_was_put_in_is_not_trained_on() -> None:
    tree = SearchTree((1,))
    node = tree.add_node(tree.ROOT, Step((2, 3, 4), "x", (-0.5, 0.0, -0.25)), finish="eos")
    assert to_rollouts(tree, {node: 1.0})["rollouts"][0]["response_mask"] == [1, 0, 1]
    silent = SearchTree((1,))
    node = silent.add_node(silent.ROOT, Step((2, 3), "x"), finish="eos")
    (rollout,) = to_rollouts(silent, {node: None})["rollouts"]
    assert (rollout["response_mask"], rollout["response_logprobs"], rollout["reward_score"]) == ([1, 1], None, None)


def test_drafts_of_many_rounds_are_visited_once() -> None:
    """Each round has prompts made from all drafts of the one before: there are 8 ** 40 ways to the first."""
    tree = SearchTree((1,))
    nodes = [tree.add_node(tree.ROOT, Step((i,), "x"), finish="eos") for i in range(8)]
    for number in range(40):
        context = tree.add_context(Context((1, number), "again", sources=tuple(nodes)))
        nodes = [tree.add_node(context, Step((i,), "x"), finish="eos") for i in range(8)]
    made = to_rollouts(tree, dict.fromkeys(nodes, 0.5))
    assert Counter(segment["value"] for segment in made["segments"]) == {0.5: 8 * 41}

"""Lookahead beam search: branches are scored by greedy steps behind them, which are used for nothing else."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from decoding.core import GenerationRequest, Tokens
from search.strategies.beam_search import BeamSearch
from search.strategies.lookahead_beam import LookaheadBeam
from search.strategy import Budget, SearchResult
from search.tree import SearchTree
from tests.support.toy_search import (
    ConstantScorer,
    SomeStepsScorer,
    ToyEngine,
    ToyScorer,
    UnsteadyEngine,
    nodes_by_parent,
    run_search,
    write_five_steps,
    write_solution,
)


class MarkingEngine(ToyEngine):
    """Begins greedy steps with a star."""

    def continue_prefix(self, request: GenerationRequest) -> Any:
        write = self.write
        starred = ToyEngine(lambda seed, prefix: "*" * (request.params.temperature == 0) + write(seed, prefix))
        return starred.continue_prefix(request)


def is_greedy(tree: SearchTree, node: int) -> bool:
    return tree.nodes[node].step.text.startswith("*")


def end_of_lookahead(tree: SearchTree, node: int, steps: int) -> int:
    """The end of the chain of greedy steps behind a branch."""
    below = nodes_by_parent(tree)
    for _ in range(steps):
        greedy = [child for child in below.get(node, []) if is_greedy(tree, child)]
        assert len(greedy) <= 1
        node = greedy[0] if greedy else node
    return node


def assert_best_ends_are_continued(result: SearchResult, strategy: LookaheadBeam) -> None:
    tree, below = result.tree, nodes_by_parent(result.tree)
    for decision in result.selections:
        ends = [end_of_lookahead(tree, node, strategy.lookahead) for node in decision.nodes]
        for node, end in zip(decision.nodes, ends, strict=True):
            steps = tree.nodes[end].depth - tree.nodes[node].depth
            assert steps == strategy.lookahead or tree.nodes[end].finish is not None
        scores = [tree.path_score(end, strategy.agg_strategy) for end in ends]
        median = statistics.median([score for score in scores if score is not None] or [0])
        filled = [median if score is None else score for score in scores]
        width = sum(decision.widths)
        ranks = sorted(range(len(ends)), key=lambda i: (-filled[i], i))[: -(-width // strategy.beam_width)]
        assert [i for i, count in enumerate(decision.widths) if count] == sorted(ranks)
        for node, count in zip(decision.nodes, decision.widths, strict=True):
            assert sum(not is_greedy(tree, child) for child in below.get(node, [])) == count


@pytest.mark.parametrize("seed", range(60))
def test_branches_are_kept_by_the_score_of_where_they_lead(seed: int) -> None:
    rng = random.Random(seed)
    strategy = LookaheadBeam(
        n=rng.randint(4, 12),
        beam_width=rng.randint(1, 4),
        lookahead=rng.randint(1, 4),
        agg_strategy=rng.choice(["last", "min", "mean", "prod"]),
    )
    write: Callable[[int, Tokens], str] = (write_solution, write_five_steps)[seed % 2]
    scorer = (ToyScorer(), SomeStepsScorer(), ConstantScorer())[seed % 3]
    result = run_search(strategy, engine=MarkingEngine(write), scorer=scorer, seed=seed)
    assert result.selections
    assert_best_ends_are_continued(result, strategy)


@pytest.mark.parametrize("seed", range(20))
def test_greedy_steps_neither_vote_nor_are_continued(seed: int) -> None:
    result = run_search(LookaheadBeam(n=8, lookahead=2), engine=MarkingEngine(), seed=seed)
    tree = result.tree
    assert any(is_greedy(tree, node) for node in range(len(tree)))
    for candidate in result.candidates:
        assert not any(is_greedy(tree, node) for node in tree.path_nodes(candidate.node))
    for decision in result.selections:
        assert not any(is_greedy(tree, node) for node in decision.nodes)
    for node in range(len(tree)):
        parent = tree.nodes[node].parent
        assert parent == SearchTree.ROOT or is_greedy(tree, node) or not is_greedy(tree, parent)


@pytest.mark.parametrize("seed", range(10))
def test_without_lookahead_it_is_beam_search(seed: int) -> None:
    one, other = (run_search(s, seed=seed) for s in (BeamSearch(n=12), LookaheadBeam(n=12, lookahead=0)))
    assert one.tree.to_dict() == other.tree.to_dict()
    assert (one.votes, one.best) == (other.votes, other.best)


def test_branch_that_leads_to_a_dead_end_is_given_up() -> None:
    class Judge(ToyScorer):
        @staticmethod
        def score_text(text: str) -> float:
            return 0.0 if "stuck" in text else 0.9 if "tempting" in text else 0.5

    def write(seed: int, prefix: Tokens) -> str:
        before = bytes(prefix).decode("latin-1")
        if "\n\n" not in before:
            return ("A tempting step.\n\n", "A plain step.\n\n")[seed % 2]
        answer = "I am stuck: \\boxed{1}" if "tempting" in before else "\\boxed{2}"
        return "And so on.\n\n" if before.count("\n\n") < 2 else answer

    results = [
        run_search(LookaheadBeam(n=8, lookahead=steps), engine=ToyEngine(write), scorer=Judge()) for steps in (0, 2)
    ]
    assert set(results[0].votes) == {"1"}
    assert set(results[1].votes) == {"2"}


@pytest.mark.parametrize("seed", range(6))
def test_tree_does_not_depend_on_which_branch_is_faster(seed: int) -> None:
    results = [run_search(LookaheadBeam(n=8), engine=UnsteadyEngine(order), seed=seed) for order in range(4)]
    assert len({str((r.tree.to_dict(), r.votes, r.best)) for r in results}) == 1


def test_budget_counts_greedy_steps_and_ends_among_them() -> None:
    strategy = LookaheadBeam(n=8, lookahead=2)
    whole = run_search(strategy).usage.tokens
    for tokens in range(1, whole, 23):
        result = run_search(strategy, budget=Budget(tokens=tokens))
        assert result.usage.tokens <= tokens
        assert result.stop_reason == "budget"
        assert result.candidates


def test_wrong_knobs_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="beam_width must be at most n=2, got 4"):
        LookaheadBeam(n=2)
    with pytest.raises(ValueError, match="lookahead must be an int >= 0, got -1"):
        LookaheadBeam(lookahead=-1)

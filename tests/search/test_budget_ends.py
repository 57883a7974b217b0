"""Where a budget ends a search over steps: not before it is used up, and nothing that was written is lost."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.core import SamplingParams
from search.step_search import StepSearch
from search.strategies.astar import AStar
from search.strategies.dpts import Dpts
from search.strategies.mcts import Mcts
from search.strategy import Budget, SearchResult
from tests.support.fakes import ScriptedEngine, ToyTokenizer
from tests.support.searches import search_classes
from tests.support.toy_search import ToyEngine, UnsteadyEngine, run_search, write_five_steps

STRATEGIES = search_classes(StepSearch)
STEP_TOKENS = 64
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def run(strategy: Any, **changes: Any) -> SearchResult:
    return run_search(strategy, **{"engine": ToyEngine(write_five_steps, hesitates=True)} | changes)


@every_strategy
@pytest.mark.parametrize("tokens", [300, 700, 2000, 6000])
def test_search_is_out_of_budget_only_where_no_whole_step_is_left(name: str, tokens: int) -> None:
    """Requests reserve the tokens of a whole step; what they leave over belongs to those that come after them."""
    result = run(STRATEGIES[name](n=8, step_tokens=STEP_TOKENS), budget=Budget(tokens=tokens))
    assert result.usage.tokens <= tokens
    assert result.stop_reason == "done" or tokens - result.usage.tokens < STEP_TOKENS


@pytest.mark.parametrize("strategy", [AStar(n=2), Mcts(n=6), Dpts(n=6)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("budget", [Budget(tokens=900), Budget(calls=23), Budget(forwards=700)], ids=str)
def test_tree_under_a_budget_does_not_depend_on_timing(strategy: StepSearch, budget: Budget) -> None:
    trees = [run(strategy, budget=budget, engine=UnsteadyEngine(seed, write_five_steps)).tree for seed in range(6)]
    assert all(tree.to_dict() == trees[0].to_dict() for tree in trees)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "ab_mcts"])  # it writes whole solutions
@pytest.mark.parametrize("budget", [Budget(calls=4), Budget(calls=6), Budget(tokens=40), Budget(tokens=41)], ids=str)
def test_branch_with_an_answer_votes_where_the_budget_does_not_continue_it(name: str, budget: Budget) -> None:
    """Every step has ten tokens and the answer; none is the last."""
    tokenizer = ToyTokenizer()
    strategy = STRATEGIES[name](n=4, step_tokens=10, sampling=SamplingParams(max_tokens=400), select="majority")
    result = run(
        strategy,
        engine=ScriptedEngine(["answer 7\n\n"]),
        decode=tokenizer.decode,
        extract_answer=lambda text: "7" if "answer 7" in text else None,
        budget=budget,
    )
    assert result.stop_reason == "budget"
    assert result.votes.keys() == {"7"}


@pytest.mark.parametrize("seed", range(12))
def test_decided_vote_of_dpts_is_that_of_the_whole_search(seed: int) -> None:
    """Every step of its last paths may end with a solution, beyond `n`."""
    engine = ToyEngine(lambda branch, prefix: write_five_steps(branch + seed, prefix))
    whole, stopped = (run(Dpts(n=8, select="majority", early_stop=share), engine=engine) for share in (None, 1.0))
    assert stopped.best is not None
    assert stopped.stop_reason in ("done", "decided")
    assert max(stopped.votes, key=stopped.votes.__getitem__) == max(whole.votes, key=whole.votes.__getitem__)


@pytest.mark.parametrize("kind", [AStar, Dpts])
@pytest.mark.parametrize("tokens", range(40, 220, 20))
def test_endings_that_wait_for_each_other_are_written_or_vote_as_they_are(kind: Any, tokens: int) -> None:
    """After the last expansion every step has the answer already: none of the four may be lost."""
    tokenizer = ToyTokenizer()
    sampling = SamplingParams(max_tokens=400)
    result = run(
        kind(n=4, branching=4, expansions=1, step_tokens=10, sampling=sampling, select="majority"),
        engine=ScriptedEngine(["answer 7\n\n"] * 4 + ["and 10 more"] * 9),
        decode=tokenizer.decode,
        extract_answer=lambda text: "7" if "answer 7" in text else None,
        budget=Budget(tokens=tokens),
    )
    assert result.votes == {"7": 4.0}
    paths = [set(result.tree.path_nodes(candidate.node)) for candidate in result.candidates]
    assert all(len(path & other) == 0 for i, path in enumerate(paths) for other in paths[:i]), "two votes of one branch"


@pytest.mark.parametrize("tokens", range(60, 700, 40))
def test_rollouts_that_wait_for_the_budget_do_not_mix_with_steps(tokens: int) -> None:
    for n in (2, 4, 8):
        strategy = Mcts(n=n, step_tokens=STEP_TOKENS, value="rollout", sampling=SamplingParams(max_tokens=300))
        assert run(strategy, budget=Budget(tokens=tokens)).usage.tokens <= tokens

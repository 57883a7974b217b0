"""Knobs and limits of every search over steps: merged siblings, early stop, missing scores, recorded decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from search.level_search import LevelSearch
from search.selection import REASONS
from search.step_search import StepSearch
from search.strategies.beam_search import BeamSearch
from search.strategies.cntp import Cntp
from search.strategies.pg_td import PgTd
from search.strategy import Budget, ScoredPaths, SearchResult, StepScores
from search.tree import Step
from tests.support.searches import search_classes
from tests.support.toy_search import (
    ROOT,
    ConstantScorer,
    ToyEngine,
    ToyScorer,
    nodes_by_parent,
    run_search,
    toy_resources,
    write_five_steps,
)

STRATEGIES = search_classes(StepSearch)
every_strategy = pytest.mark.parametrize("name", STRATEGIES)
SCORED = STRATEGIES | {"cntp": partial(Cntp, select="weighted", trial_tokens=24), "pg_td": PgTd}
"""Searches over single tokens, too, in whose votes or values scores count; budgets of all: `tests/test_conf.py`."""


def run(strategy: Any, **changes: Any) -> SearchResult:
    return run_search(strategy, **{"engine": ToyEngine(write_five_steps, hesitates=True)} | changes)


def last_digit(text: str) -> str:
    return [c for c in text if c.isdigit()][-1]


@every_strategy
class TestMerging:
    def test_selection_has_one_branch_per_meaning(self, name: str) -> None:
        """Steps of the toy have the same meaning if they end with the same digit."""
        strategy = STRATEGIES[name](n=8, merge=True)
        result = run(strategy)
        tree = result.tree
        for decision in result.selections:
            by_parent: dict[tuple[int, int], list[str]] = {}
            for node, part in zip(decision.nodes, strategy.find_parts(tree, decision.nodes), strict=True):
                by_parent.setdefault((tree.nodes[node].parent, part), []).append(last_digit(tree.nodes[node].step.text))
            for meanings in by_parent.values():
                assert len(meanings) == len(set(meanings))

    def test_merging_search_solves_and_repeats(self, name: str) -> None:
        one, other = (run(STRATEGIES[name](n=8, merge=True)) for _ in range(2))
        assert one.best is not None
        assert one.tree.to_dict() == other.tree.to_dict()

    def test_merging_needs_an_embedder(self, name: str) -> None:
        assert STRATEGIES[name](merge=True).needs_embedder


def test_merged_branches_take_turns() -> None:
    """All first steps have the same meaning: one branch gets the whole width, and its members share it."""
    same = ToyEngine(lambda seed, prefix: f"Try {seed % 97}1.\n\nTry {seed % 89}2.\n\n\\boxed{{3}}")
    result = run(BeamSearch(n=8, beam_width=8, merge=True), engine=same)
    below = nodes_by_parent(result.tree)
    first = below[-1]
    assert [len(below[node]) for node in first] == [1] * 8
    assert result.selections[0].widths == (8,)
    scores = [result.tree.nodes[node].score or 0.0 for node in first]
    assert result.selections[0].nodes == (first[scores.index(max(scores))],)


@every_strategy
class TestEarlyStop:
    def test_unanimous_vote_is_decided_before_the_end(self, name: str) -> None:
        def sure(seed: int, prefix: tuple[int, ...]) -> str:
            long = "".join(f"Try {seed % 1000 + i}.\n\n" for i in range(seed % 4))
            return long + "\\boxed{7}"

        whole = run(STRATEGIES[name](n=32), engine=ToyEngine(sure))
        short = run(STRATEGIES[name](n=32, early_stop=0.5, select="majority"), engine=ToyEngine(sure))
        assert short.stop_reason == "decided"
        assert whole.stop_reason == "done"
        assert short.usage.tokens < whole.usage.tokens
        assert short.votes.keys() == {"7"}

    def test_early_stop_is_off_by_default(self, name: str) -> None:
        assert STRATEGIES[name]().early_stop is None

    @pytest.mark.parametrize("wrong", [0, 1.5, True, "soon"])
    def test_wrong_early_stop_is_refused_by_name(self, name: str, wrong: Any) -> None:
        with pytest.raises(ValueError, match="early_stop must be in"):
            STRATEGIES[name](early_stop=wrong)
        with pytest.raises(ValueError, match="early_stop needs select=weighted or select=majority"):
            STRATEGIES[name](early_stop=1, select="best")


@pytest.mark.parametrize("name", SCORED)
class TestScorers:
    def test_missing_and_invalid_scores_do_not_end_a_search(self, name: str) -> None:
        class Moody(ToyScorer):
            async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
                scored = await super().score(paths)
                odd: list[StepScores | None] = [
                    None if i % 3 == 0 else [float("nan")] * len(scores or []) if i % 3 == 1 else scores
                    for i, scores in enumerate(scored.scores)
                ]
                return ScoredPaths(odd, scored.usage)

        assert run(SCORED[name](n=8), scorer=Moody()).best is not None

    def test_search_without_any_score_still_has_an_answer(self, name: str) -> None:
        class Silent(ToyScorer):
            async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
                return ScoredPaths([None] * len(paths))

        result = run(SCORED[name](n=8), scorer=Silent())
        assert result.best is not None
        assert all(node.score is None for node in result.tree.nodes)

    def test_hanging_scorer_costs_its_scores_only(self, name: str) -> None:
        class Hangs(ToyScorer):
            hung = False

            async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
                if self.calls and not self.hung:
                    self.hung = True
                    await asyncio.sleep(60)
                return await super().score(paths)

        scorer = Hangs()
        engine = ToyEngine(hesitates=True)  # its solutions differ in length, so that there are several calls
        result = run(SCORED[name](n=8), engine=engine, scorer=scorer, scorer_timeout=0.05)
        assert scorer.hung
        assert result.best is not None
        assert any(node.score is not None for node in result.tree.nodes)

    def test_scorer_error_is_raised_and_leaves_no_task(self, name: str) -> None:
        class Broken(ToyScorer):
            async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
                raise RuntimeError("no more scores")

        async def tasks_left() -> int:
            with pytest.raises(RuntimeError, match="no more scores"):
                await SCORED[name](n=8)(ROOT, toy_resources(engine=ToyEngine(hesitates=True), scorer=Broken()))
            await asyncio.sleep(0)
            return len(asyncio.all_tasks()) - 1

        assert asyncio.run(tasks_left()) == 0

    def test_ties_of_scores_are_repeatable(self, name: str) -> None:
        one, other = (run(SCORED[name](n=8), scorer=ConstantScorer()) for _ in range(2))
        assert one.best is not None
        assert one.tree.to_dict() == other.tree.to_dict()


@pytest.mark.parametrize("name", search_classes(LevelSearch))
@pytest.mark.parametrize("seed", range(10))
def test_decided_vote_equals_the_vote_of_the_whole_search(name: str, seed: int) -> None:
    for select in ("majority", "weighted"):
        whole, short = (
            run(STRATEGIES[name](n=16, early_stop=stop, select=select), engine=ToyEngine(), seed=seed)
            for stop in (None, 1)
        )

        def leader(result: SearchResult) -> str:
            return max(result.votes, key=lambda answer: result.votes[answer])

        assert leader(whole) == leader(short)
        assert short.usage.tokens <= whole.usage.tokens


class HalfScorer(ToyScorer):
    """Scores every other path."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        scored = await super().score(paths)
        return ScoredPaths([s if i % 2 else None for i, s in enumerate(scored.scores)], scored.usage)


@pytest.mark.parametrize("name", search_classes(LevelSearch))
def test_weighted_vote_with_unscored_solutions_is_not_decided_early(name: str) -> None:
    for seed in range(10):
        strategy = STRATEGIES[name](n=16, early_stop=0.01)
        result = run(strategy, engine=ToyEngine(), scorer=HalfScorer(), seed=seed)
        if any(c.score is None and c.answer is not None for c in result.candidates):
            assert result.stop_reason == "done"


@every_strategy
def test_selections_are_recorded_with_reasons_and_kv(name: str) -> None:
    result = run(STRATEGIES[name](n=8))
    assert result.selections
    sizes = [decision.size for decision in result.selections]
    assert sizes == sorted(sizes)
    for decision in result.selections:
        none = {node for node, width in zip(decision.nodes, decision.widths, strict=True) if not width}
        assert set(decision.reasons) == none
        assert set(decision.reasons.values()) <= set(REASONS)
        assert 0 < decision.kept_tokens <= decision.kv_tokens
        assert 0 < decision.kept_nodes <= decision.kv_nodes


@every_strategy
def test_open_leaves_have_the_stop_reason_of_the_search(name: str) -> None:
    for why, result in {
        "budget": run(STRATEGIES[name](n=8), budget=Budget(tokens=150)),
        "decided": run(STRATEGIES[name](n=32, early_stop=0.01, select="majority"), engine=ToyEngine()),
    }.items():
        assert result.stop_reason == why
        explained = {node for decision in result.selections for node in decision.reasons}
        open_leaves = {i for i in result.tree.leaf_nodes() if result.tree.nodes[i].finish is None}
        assert open_leaves <= explained
        assert not open_leaves or why in result.selections[-1].reasons.values()

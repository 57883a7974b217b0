"""The expansion of trees: seeds, budgets, scoring, and the nodes of a generation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams, Usage
from search.expand import Expander
from search.expansion_batch import ExpansionBatch
from search.step_rules.markers import MarkerSteps
from search.steps import DelimiterSteps
from search.strategy import Budget, ScoredPaths
from search.tree import SearchTree, Step, round_score
from tests.support.toy_search import ROOT, ToyEngine, ToyScorer, UnsteadyEngine, toy_resources

SAMPLING = SamplingParams(max_tokens=200)


def test_solution_becomes_a_chain_of_its_steps() -> None:
    run = Expander(ROOT, toy_resources(engine=ToyEngine(lambda *_: "One.\n\nTwo.\n\n\\boxed{3}")))
    (leaf,) = asyncio.run(run.sample_continuations([SearchTree.ROOT], SAMPLING, one_step=False))
    assert [step.text for step in run.tree.path_steps(leaf)] == ["One.\n\n", "Two.\n\n", "\\boxed{3}"]
    assert [run.tree.nodes[i].finish for i in run.tree.path_nodes(leaf)] == [None, None, "eos"]
    assert run.tree.finished_leaves() == [leaf]


def test_step_ends_at_the_delimiter_and_can_be_continued() -> None:
    run = Expander(ROOT, toy_resources(engine=ToyEngine(lambda *_: "One.\n\nTwo.")))
    (node,) = asyncio.run(run.sample_continuations([SearchTree.ROOT], SAMPLING, one_step=True))
    assert (run.tree.path_text(node), run.tree.nodes[node].finish) == ("One.\n\n", None)


def test_stop_string_of_the_sampling_params_ends_the_path_even_in_steps() -> None:
    run = Expander(ROOT, toy_resources(engine=ToyEngine(lambda *_: "One. DONE and more\n\nTwo.")))
    (node,) = asyncio.run(run.sample_continuations([SearchTree.ROOT], SamplingParams(stop=("DONE",)), one_step=True))
    assert run.tree.nodes[node].finish == "stop"


def test_expansion_by_steps_reaches_solutions_and_keeps_tree_invariants() -> None:
    run = Expander(ROOT, toy_resources())
    frontier = [SearchTree.ROOT] * 4
    for _ in range(20):
        nodes = asyncio.run(run.sample_continuations(frontier, SAMPLING, one_step=True))
        frontier = [node for node in nodes if run.tree.nodes[node].finish is None]
        run.tree.assert_invariants()
    assert run.tree.finished_leaves() == run.tree.leaf_nodes()


def test_siblings_get_different_seeds_also_in_later_batches() -> None:
    engine = ToyEngine()
    run = Expander(ROOT, toy_resources(engine=engine))
    asyncio.run(run.sample_continuations([SearchTree.ROOT] * 3, SAMPLING, one_step=False))
    asyncio.run(run.sample_continuations([SearchTree.ROOT] * 3, SAMPLING, one_step=False))
    assert len({request.seed for request in engine.requests}) == 6


def test_branch_does_not_depend_on_earlier_expansions() -> None:
    async def second_child_of_first(others_first: bool) -> str:
        run = Expander(ROOT, toy_resources(engine=ToyEngine(lambda seed, _: f"{seed}.\n\nmore")))
        one, two = await run.sample_continuations([SearchTree.ROOT] * 2, SAMPLING, one_step=True)
        if others_first:
            await run.sample_continuations([two] * 3, SAMPLING, one_step=True)
        return run.tree.path_text((await run.sample_continuations([one] * 2, SAMPLING, one_step=True))[1])

    assert asyncio.run(second_child_of_first(True)) == asyncio.run(second_child_of_first(False))


def test_branches_depend_on_the_problem_seed() -> None:
    trees = []
    for seed in (1, 2):
        run = Expander(ROOT, toy_resources(seed=seed))
        asyncio.run(run.sample_continuations([SearchTree.ROOT] * 4, SAMPLING, one_step=False))
        trees.append(run.tree.to_dict())
    assert trees[0] != trees[1]


def test_branch_is_scored_while_others_are_generated() -> None:
    log: list[str] = []

    class Slow(ToyEngine):
        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            number = len(self.requests)
            self.requests += requests
            await asyncio.sleep(0.01 if number else 0.2)  # the first of them takes longest
            log.append(f"wrote {number}")
            return [self.continue_prefix(request) for request in requests]

    class Noted(ToyScorer):
        async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
            log.append("scored")
            return await super().score(paths)

    run = Expander(ROOT, toy_resources(engine=Slow(), scorer=Noted()))
    asyncio.run(run.sample_continuations([SearchTree.ROOT] * 3, SAMPLING, one_step=False))
    assert log.index("scored") < log.index("wrote 0")
    assert log.count("scored") == 2
    assert all(node.score == round_score(ToyScorer.score_text(node.step.text)) for node in run.tree.nodes)


def test_branches_that_end_together_are_scored_in_one_call() -> None:
    scorer = ToyScorer()
    run = Expander(ROOT, toy_resources(scorer=scorer))
    asyncio.run(run.sample_continuations([SearchTree.ROOT] * 5, SAMPLING, one_step=False))
    assert scorer.calls == [5]


def test_scorer_is_not_called_for_dropped_branches_alone() -> None:
    class Slow(ToyScorer):
        async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
            scored = await super().score(paths)
            await asyncio.sleep(0.01)
            return scored

    scorer = Slow()

    async def drop_during_a_call() -> None:
        run = Expander(ROOT, toy_resources(scorer=scorer))
        for _ in range(2):
            run.start_batch([SearchTree.ROOT] * 2, SAMPLING, one_step=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        run.cancel_pending()
        await asyncio.sleep(0.05)

    asyncio.run(drop_during_a_call())
    assert scorer.calls == [2]


@pytest.mark.parametrize("seed", range(20))
def test_the_tree_does_not_depend_on_the_order_of_completion(seed: int) -> None:
    trees = []
    for engine in (ToyEngine(), UnsteadyEngine(seed)):
        run = Expander(ROOT, toy_resources(engine=engine))
        asyncio.run(run.sample_continuations([SearchTree.ROOT] * 8, SAMPLING, one_step=False))
        trees.append(run.tree.to_dict())
    assert trees[0] == trees[1]


def test_scorer_timeout_leaves_the_path_unscored(caplog: pytest.LogCaptureFixture) -> None:
    class Hangs(ToyScorer):
        async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
            if not self.calls:
                self.calls.append(1)
                await asyncio.sleep(60)
            return await super().score(paths)

    run = Expander(ROOT, toy_resources(scorer=Hangs(), scorer_timeout=0.05))
    late = asyncio.run(run.sample_continuations([SearchTree.ROOT] * 3, SAMPLING, one_step=False))
    in_time = asyncio.run(run.sample_continuations([SearchTree.ROOT] * 2, SAMPLING, one_step=False))
    assert [run.tree.path_score(leaf, "last") is None for leaf in (*late, *in_time)] == [True] * 3 + [False] * 2
    assert "no scores after 0.05 s" in caplog.text


def test_generation_error_cancels_all_pending_requests() -> None:
    cancelled: list[int] = []

    class Breaks(ToyEngine):
        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            self.requests += requests
            if len(self.requests) == 3:
                raise RuntimeError("gone")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(1)
                raise
            return []

    async def both() -> None:
        run = Expander(ROOT, toy_resources(engine=Breaks()))
        other = run.start_batch([SearchTree.ROOT] * 2, SAMPLING, one_step=True)
        assert len(other) == 2
        with pytest.raises(RuntimeError, match="gone"):
            await run.sample_continuations([SearchTree.ROOT], SAMPLING, one_step=True)
        await asyncio.sleep(0.01)

    asyncio.run(both())
    assert len(cancelled) == 2


@pytest.mark.parametrize("delay", [0.0, 0.1])
@pytest.mark.parametrize("broken", ["engine", "scorer"])
def test_error_of_a_later_branch_does_not_wait_for_a_slow_one(
    broken: str, delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.expand._LONG_WAIT", 0.02)
    cancelled: list[int] = []

    class SlowFirst(ToyEngine):
        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            self.requests += requests
            number = len(self.requests)
            try:
                await asyncio.sleep(delay if number == 3 else 600)
            except asyncio.CancelledError:
                cancelled.append(number)
                raise
            if broken == "engine":
                raise RuntimeError("gone")
            return [self.continue_prefix(request) for request in requests]

    class Breaks(ToyScorer):
        async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
            raise RuntimeError("gone")

    async def search() -> None:
        run = Expander(ROOT, toy_resources(engine=SlowFirst(), scorer=Breaks()))
        with pytest.raises(RuntimeError, match="gone"):
            await asyncio.wait_for(run.sample_continuations([SearchTree.ROOT] * 4, SAMPLING, one_step=False), 60)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(search())
    assert sorted(cancelled) == [1, 2, 4]


@pytest.mark.parametrize("tokens", [1, 7, 50, 200, 431, 1000])
def test_token_budget_holds_and_is_reported_with_waves_that_fit(tokens: int) -> None:
    engine = ToyEngine()
    run = Expander(ROOT, toy_resources(engine=engine, budget=Budget(tokens=tokens)))
    leaves = asyncio.run(run.sample_continuations([SearchTree.ROOT] * 50, SAMPLING, one_step=False))
    assert run.usage.tokens == sum(len(node.step.tokens) for node in run.tree.nodes) <= tokens
    assert run.usage.calls == len(leaves) == len(engine.requests) < 50
    assert run.stop_reason == "budget"


def test_concurrent_expansions_share_one_budget() -> None:
    async def both() -> Expander:
        run = Expander(ROOT, toy_resources(budget=Budget(tokens=500)))
        await asyncio.gather(
            *(run.sample_continuations([SearchTree.ROOT] * 9, SAMPLING, one_step=False) for _ in range(4))
        )
        return run

    run = asyncio.run(both())
    assert run.usage.tokens <= 500


def test_sufficient_budget_is_not_the_stop_reason() -> None:
    run = Expander(ROOT, toy_resources(budget=Budget(tokens=10_000, calls=4, seconds=1000)))
    assert len(asyncio.run(run.sample_continuations([SearchTree.ROOT] * 4, SAMPLING, one_step=False))) == 4
    assert run.stop_reason == "done"


def test_deadline_is_set_on_every_request() -> None:
    engine = ToyEngine()
    run = Expander(ROOT, toy_resources(engine=engine, budget=Budget(seconds=9)))
    asyncio.run(run.sample_continuations([SearchTree.ROOT] * 2, SAMPLING, one_step=False))
    assert len({request.deadline for request in engine.requests}) == 1
    assert engine.requests[0].deadline is not None


def test_request_length_is_limited_by_the_context_window() -> None:
    engine = ToyEngine()
    run = Expander(ROOT, toy_resources(engine=engine, context_window=len(ROOT) + 20))
    asyncio.run(run.sample_continuations([SearchTree.ROOT] * 2, SAMPLING, one_step=False))
    assert [request.params.max_tokens for request in engine.requests] == [20, 20]
    assert {node.finish for node in run.tree.nodes} <= {None, "length", "eos"}
    assert run.stop_reason == "done"  # the window is not the budget


def test_empty_generation_adds_no_node() -> None:
    class OutOfTime:
        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            return [Generation(tokens=(), logprobs=(), finish="deadline") for _ in requests]

    run = Expander(ROOT, toy_resources(engine=OutOfTime()))
    assert (
        asyncio.run(run.sample_continuations([SearchTree.ROOT] * 2, SAMPLING, one_step=False)) == [SearchTree.ROOT] * 2
    )
    assert (len(run.tree), run.stop_reason) == (0, "budget")


class Scores:
    """Returns the given scores for every path."""

    def __init__(self, scores: list[float] | None, *, copies: int | None = None) -> None:
        self.scores, self.copies = scores, copies

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([self.scores] * (len(paths) if self.copies is None else self.copies), Usage())


def scored_by(scorer: Scores) -> SearchTree:
    run = Expander(ROOT, toy_resources(engine=ToyEngine(lambda *_: "One.\n\nTwo."), scorer=scorer))
    asyncio.run(run.sample_continuations([SearchTree.ROOT], SAMPLING, one_step=False))
    return run.tree


def test_path_that_cannot_be_scored_has_no_scores() -> None:
    assert [node.score for node in scored_by(Scores(None)).nodes] == [None, None]


def test_nan_counts_as_not_scored() -> None:
    tree = scored_by(Scores([0.5, math.nan]))
    assert tree.path_score(1, "last") is None


def test_scorer_with_missing_steps_or_paths_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 scores for a path of 2 steps"):
        scored_by(Scores([0.5]))
    with pytest.raises(ValueError, match="given 1 paths and returned scores for 2"):
        scored_by(Scores([0.5, 0.5], copies=2))


def test_ancestor_keeps_its_first_score() -> None:
    run = Expander(ROOT, toy_resources(engine=ToyEngine(lambda *_: "One.\n\nTwo."), scorer=Scores([0.5])))
    (node,) = asyncio.run(run.sample_continuations([SearchTree.ROOT], SAMPLING, one_step=True))
    run.resources.scorer.scores = [0.9, 0.1]  # type: ignore[union-attr]
    asyncio.run(run.sample_continuations([node], SAMPLING, one_step=True))
    assert [n.score for n in run.tree.nodes] == [0.5, 0.1]


def test_step_that_ends_before_a_written_token_has_no_hidden_state() -> None:
    """The engine's is that of the last token it wrote."""

    class HiddenEngine(ToyEngine):
        def continue_prefix(self, request: GenerationRequest) -> Generation:
            return replace(super().continue_prefix(request), hidden=np.ones(2, dtype=np.float32))

    engine = HiddenEngine(lambda seed, prefix: "So it is four. Wait, no.")
    cut, whole = (
        Expander(ROOT, toy_resources(engine=engine, step_rule=rule), embed=True)
        for rule in (MarkerSteps(markers=("Wait",), min_tokens=0), DelimiterSteps())
    )
    for expander in (cut, whole):
        asyncio.run(expander.sample_continuations([SearchTree.ROOT], SAMPLING, one_step=True))
    assert cut.tree.nodes[0].step.text == "So it is four. "
    assert not cut.hidden_states
    assert whole.hidden_states.keys() == {0}


def test_cancelled_requests_are_counted() -> None:
    async def scenario() -> Expander:
        expander = Expander(ROOT, toy_resources(budget=Budget(tokens=10_000)))
        batches = [expander.start_batch([SearchTree.ROOT] * 3, SAMPLING, one_step=True) for _ in range(2)]
        await expander.collect_batch(batches[0])
        expander.cancel_pending()
        expander.cancel_pending()
        return expander

    expander = asyncio.run(scenario())
    assert (expander.usage.calls, expander.usage.cancelled) == (6, 3)
    assert len(expander.start_batch([], SAMPLING, one_step=True).pending) == 0


def test_batch_beside_others_is_whole_or_waits() -> None:
    async def scenario() -> list[int]:
        expander = Expander(ROOT, toy_resources(budget=Budget(tokens=5 * SAMPLING.max_tokens)))

        def start(count: int) -> ExpansionBatch:
            return expander.start_batch([SearchTree.ROOT] * count, SAMPLING, one_step=True, whole=True)

        alone = start(3)
        sizes = [len(alone), len(start(3)), len(start(2))]
        expander.cancel_pending()
        late = start(9)
        expander.cancel_pending()
        return [*sizes, len(late), len(late.refused)]

    assert asyncio.run(scenario()) == [3, 0, 2, 5, 4]

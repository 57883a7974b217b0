"""Numbers that depend on the batch in their last digits decide nothing: equal paths have equal numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams, StepOrigin
from search.expand import Expander
from search.strategies.beam_search import BeamSearch
from search.strategies.best_of_n import BestOfN
from search.strategies.mcts import Mcts
from search.strategy import ScoredPaths, Strategy
from search.tree import SearchTree, Step, round_score
from tests.support.toy_search import ToyEngine, ToyScorer, run_search, toy_resources

SAMPLING = SamplingParams(max_tokens=60)


class NoisyEngine(ToyEngine):
    """Generates one of two texts of different probability; log-probabilities and hidden states differ by `noise` from
    call to call, as those of equal generations do that were computed in different batches."""

    def __init__(self, noise: Sequence[float], models: Sequence[str] = ()) -> None:
        super().__init__(lambda seed, _: f"Try {seed % 2}.\n\nMore.\n\n\\boxed{{{seed % 2}}}")
        self._noise, self._models, self._calls = noise, models, count()

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        generation, call = super().continue_prefix(request), next(self._calls)
        noise = self._noise[call % len(self._noise)]
        model = self._models[call] if self._models else None
        return replace(
            generation,
            logprobs=tuple(noise - 0.5 - 0.1 * (request.seed % 2) for _ in generation.tokens),
            hidden=np.array([1.0, noise], dtype=np.float32),
            origins=(StepOrigin(len(generation.tokens), model, None),) if model else (),
        )


class LogprobScorer(ToyScorer):
    """Scores a step by its mean log-probability, as `scorer=likelihood` does."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths([[math.exp(step.mean_logprob or 0.0) for step in path] for path in paths])


def sample(engine: NoisyEngine, times: int) -> Expander:
    run = Expander((1, 2), toy_resources(engine=engine, scorer=LogprobScorer()), embed=True)
    parents = [SearchTree.ROOT] * times
    for _ in range(2):
        parents = asyncio.run(run.sample_continuations(parents, SAMPLING, one_step=True))
    return run


def test_equal_paths_have_the_numbers_of_the_first_of_them() -> None:
    run = sample(NoisyEngine(noise=(0.0, 0.01, -0.02, 0.03, -0.04)), times=12)
    by_path: dict[str, set[tuple[object, ...]]] = {}
    for i, node in enumerate(run.tree.nodes):
        numbers = (node.score, node.step.logprobs, run.hidden_states[i].tobytes())
        by_path.setdefault(run.tree.path_text(i), set()).add(numbers)
    assert len(by_path) < len(run.tree)  # there are twins
    assert all(len(numbers) == 1 for numbers in by_path.values())


def test_equal_steps_of_different_models_keep_their_own_numbers() -> None:
    engine = NoisyEngine(noise=(0.0, 0.01), models=["draft", "target"] * 12)
    run = sample(engine, times=8)
    logprobs = {
        model: {round(n.step.logprobs[0], 6) for n in run.tree.nodes if n.step.model == model}
        for model in ("draft", "target")
    }
    assert logprobs == {"draft": {-0.5, -0.6}, "target": {-0.49, -0.59}}


@pytest.mark.parametrize(
    "strategy",
    [
        BestOfN(n=8, sampling=SAMPLING),
        BeamSearch(n=8, beam_width=2, sampling=SAMPLING),
        Mcts(n=8, rule="puct", exploration=0.3, sampling=SAMPLING),
    ],
    ids=["best_of_n", "beam_search", "mcts"],
)
def test_noise_of_the_batch_does_not_change_a_search(strategy: Strategy) -> None:
    noise = [dice * 1e-7 for dice in (3, -8, 1, 9, -2, 6, -5)]
    results = [
        run_search(strategy, engine=NoisyEngine(order), scorer=LogprobScorer()) for order in ([0.0], noise, noise[::-1])
    ]
    assert len({str([(n.parent, n.step.tokens) for n in result.tree.nodes]) for result in results}) == 1
    assert len({(result.best, str(result.selections)) for result in results}) == 1


def test_scores_are_rounded_where_they_enter_the_tree() -> None:
    class Third(ToyScorer):
        @staticmethod
        def score_text(text: str) -> float:
            return 1 / 3

    tree = run_search(BestOfN(n=2, sampling=SAMPLING), scorer=Third()).tree
    assert {node.score for node in tree.nodes} == {0.333333}


def test_rounding_keeps_six_digits_of_large_and_small_scores() -> None:
    assert [round_score(x) for x in (0.0, 1.0, 0.12345678, 1.23456789e-9)] == [0.0, 1.0, 0.123457, 1.23457e-9]
    assert math.isnan(round_score(math.nan))


def test_mean_logprob_is_rounded_to_four_decimals() -> None:
    assert Step((1, 2, 3), "abc", (-0.1, -0.2, -0.1)).mean_logprob == -0.1333

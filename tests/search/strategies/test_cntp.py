"""Cautious next token prediction: where it tries, how often, which trial stays, and its ends."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import FinishReason, Generation, GenerationRequest, SamplingParams, Usage
from search.strategies.cntp import Cntp
from search.strategies.cntp_rules import TrialSteps, choose_trial, count_trials
from search.strategy import Budget, ScoredPaths, SearchResult
from search.tree import SearchTree, Step
from tests.support.toy_search import EOS, ROOT, ToyEngine, ToyScorer, nodes_by_parent, run_search

SURE, UNSURE, VERY_UNSURE = 0.1, 1.0, 4.0
SENTENCES = 4


def entropy_behind(text: str) -> float:
    """The digits behind `Try ` are very open, the word behind a comma is open, all else is sure."""
    return VERY_UNSURE if text.endswith("Try ") else UNSURE if text.endswith(",") else SURE


def write_next(text: str, seed: int) -> str:
    """One token, which depends on the seed where the model is unsure of it; a sentence is `Try 12,b then 34.`."""
    rng = random.Random(f"{text} {seed if entropy_behind(text) > SURE else 0}")
    sentence = text.rpartition("\n")[2]
    if text.count("\n") == SENTENCES:
        answer = f"\\boxed{{{text.count('a') % 3}}}"
        return answer[len(sentence)] if len(sentence) < len(answer) else chr(EOS)
    pattern = "Try dd,l then dd.\n"
    kind = pattern[len(sentence)]
    return str(rng.randrange(10)) if kind == "d" else rng.choice("ab") if kind == "l" else kind


def logprob_of(text: str) -> float:
    """Log-probability of the last token of a text."""
    return -0.01 if entropy_behind(text[:-1]) == SURE else -random.Random(text).choice((0.5, 1.0, 2.0))


class UnsureEngine(ToyEngine):
    """Writes token by token, so that a text does not depend on where it was interrupted."""

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        assert request.num_top > 0
        begun = bytes(request.prefix[len(ROOT) :]).decode("latin-1")
        text, entropies, logprobs = begun, list[float](), list[float]()
        while len(text) - len(begun) < request.params.max_tokens and not text.endswith(chr(EOS)):
            entropies.append(entropy_behind(text))
            text += write_next(text, request.seed)
            logprobs.append(logprob_of(text))
        finish: FinishReason = "eos" if text.endswith(chr(EOS)) else "length"
        return Generation(
            tokens=tuple(text[len(begun) :].encode("latin-1")),
            logprobs=tuple(logprobs),
            finish=finish,
            usage=Usage(calls=1, tokens=len(logprobs)),
            entropies=np.array(entropies, dtype=np.float32),
        )


class MoodyUnsureEngine(UnsureEngine):
    """The same, whose requests complete in another order than they start."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        for _ in range(len(self.requests) * 7 % 5):
            await asyncio.sleep(0)
        return await super().generate(requests)


def run(strategy: Cntp, **changes: Any) -> SearchResult:
    return run_search(strategy, **({"engine": UnsureEngine(), "scorer": None} | changes))


@given(st.lists(st.sampled_from([SURE, UNSURE]), min_size=1, max_size=30), st.integers(1, 8), st.data())
def test_piece_ends_before_an_unsure_token_and_a_trial_at_a_mark(
    entropies: list[float], trial_tokens: int, data: st.DataObject
) -> None:
    text = data.draw(st.text("ab.", min_size=len(entropies), max_size=len(entropies)))
    rule = TrialSteps(threshold=0.5, trial_tokens=trial_tokens, marks=".")
    measured = np.array(entropies, dtype=np.float32)
    end = rule.find_end(tuple(text.encode()), 0, lambda ids: bytes(ids).decode(), measured)
    is_trial = entropies[0] == UNSURE
    ends = [
        i
        for i in range(1, len(text) + 1)
        if (is_trial and (text[i - 1] == "." or i == trial_tokens))
        or (not is_trial and i < len(text) and entropies[i] == UNSURE)
    ]
    assert end == (ends[0] if ends else None)


@given(st.floats(0, 10))
def test_number_of_trials_never_falls_with_the_entropy(entropy: float) -> None:
    knobs = {"unsure": 0.5, "very_unsure": 3.5, "few": 3, "many": 8}
    count = count_trials(entropy, **knobs)  # type: ignore[arg-type]
    assert count in (1, 3, 8)
    assert count <= count_trials(entropy + 0.1, **knobs)  # type: ignore[arg-type]
    assert (count == 1) == (entropy <= 0.5)


@given(st.lists(st.lists(st.sampled_from([-2.0, -0.5, -0.25]), min_size=1, max_size=5), min_size=1, max_size=6))
def test_chosen_trial_is_the_most_probable_over_the_length_of_the_shortest(trials: list[list[float]]) -> None:
    shortest = min(map(len, trials))
    products = [math.prod(math.exp(logprob) for logprob in trial[:shortest]) for trial in trials]
    chosen = choose_trial(trials)
    assert products[chosen] == pytest.approx(max(products))
    assert all(product < max(products) - 1e-9 for product in products[:chosen])


def test_every_unsure_place_has_its_trials_and_one_of_them_goes_on() -> None:
    result = run(Cntp(n=1))
    tree, below = result.tree, nodes_by_parent(result.tree)
    expected = {SURE: 1, UNSURE: 3, VERY_UNSURE: 8}
    seen_entropies = set()
    for parent, children in below.items():
        text = "" if parent == SearchTree.ROOT else tree.path_text(parent)
        assert len(children) == expected[entropy_behind(text)]
        seen_entropies.add(entropy_behind(text))
        going_on = [child for child in children if child in below or child == result.best]
        assert len(going_on) == 1
        if len(children) > 1:
            steps = [tree.nodes[child].step for child in children]
            shortest = min(len(step.logprobs) for step in steps)
            sums = [round(math.fsum(step.logprobs[:shortest]), 4) for step in steps]
            assert children[sums.index(max(sums))] == going_on[0]
            assert all(len(step.text) <= 10 for step in steps)
            assert all(set(step.text[:-1]).isdisjoint(".,;:!?\n") for step in steps)
    assert seen_entropies == set(expected)


def test_solutions_are_written_side_by_side_and_vote() -> None:
    result = run(Cntp(n=6))
    assert len(result.candidates) == 6
    assert all(candidate.answer is not None for candidate in result.candidates)
    assert sum(result.votes.values()) == 6
    assert len({result.tree.path_text(candidate.node) for candidate in result.candidates}) > 1


def test_without_unsure_tokens_nothing_is_tried() -> None:
    result = run(Cntp(n=2, unsure=9.0, very_unsure=9.0))
    assert all(len(children) == 1 for parent, children in nodes_by_parent(result.tree).items() if parent >= 0)
    assert not result.selections
    assert result.usage.unused_tokens == 0


def test_decisions_say_which_trials_stay() -> None:
    result = run(Cntp(n=2))
    below = nodes_by_parent(result.tree)
    ends = {candidate.node for candidate in result.candidates}
    assert result.selections
    for decision in result.selections:
        for node, width in zip(decision.nodes, decision.widths, strict=True):
            assert bool(width) == (node in below or node in ends)


def test_tree_does_not_depend_on_timing() -> None:
    steady, moody = (run(Cntp(n=5), engine=engine) for engine in (UnsureEngine(), MoodyUnsureEngine()))
    assert steady.tree.to_dict() == moody.tree.to_dict()


@pytest.mark.parametrize("budget", [Budget(tokens=120), Budget(calls=9), Budget(tokens=1)])
def test_search_ends_at_its_budget(budget: Budget) -> None:
    result = run(Cntp(n=4), budget=budget)
    assert result.stop_reason == "budget"
    assert budget.tokens is None or result.usage.tokens <= budget.tokens
    assert budget.calls is None or result.usage.calls <= budget.calls


def test_solution_ends_at_its_limit() -> None:
    result = run(Cntp(n=3, sampling=SamplingParams(max_tokens=30)))
    assert [result.tree.nodes[candidate.node].num_path_tokens for candidate in result.candidates] == [30] * 3


def test_missing_and_invalid_scores_do_not_end_a_search() -> None:
    class Moody(ToyScorer):
        async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
            scored = await super().score(paths)
            odd = [None if i % 2 else [float("nan")] * len(s or []) for i, s in enumerate(scored.scores)]
            return ScoredPaths(odd)

    for scorer in (Moody(), ToyScorer()):
        assert run(Cntp(n=3, select="weighted"), scorer=scorer).best is not None


def test_engine_that_measures_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="search=cntp needs the entropies of tokens"):
        run(Cntp(n=1), engine=ToyEngine(measures=False))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"unsure": -1}, "unsure must be"),
        ({"very_unsure": 0.1}, "very_unsure must be at least unsure=0.5, got 0.1"),
        ({"few": 0}, "few must be an int >= 1, got 0"),
        ({"many": 2}, "many must be an int >= 3, got 2"),
        ({"trial_tokens": 0}, "trial_tokens must be an int >= 1, got 0"),
        ({"num_top": 21}, "num_top must be an int from 1 to 20, got 21"),
    ],
)
def test_wrong_knobs_are_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cntp(**knobs)

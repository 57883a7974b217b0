"""Weak solutions are dropped at the first token that the definition names, whatever the parts they are written in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens, Vector
from reason.runs.result import SampleResult
from search.confidence import measure_confidence
from search.strategies.best_of_n import BestOfN
from search.strategies.self_consistency import SelfConsistency
from search.strategy import Candidate, SearchResult
from search.thought import ThoughtBudget
from search.weak_branches import ConfidenceFloor, DropKnobs
from tests.support.toy_search import ROOT, ToyEngine, UnsteadyEngine, run_search

SAMPLING = SamplingParams(max_tokens=400)
KNOBS: dict[str, Any] = {"n": 24, "warm_up": 8, "drop_window": 12, "sampling": SAMPLING}


def measure_token(seed: int, position: int) -> float:
    """How sure the toy model is of a token: in each run of 20 tokens a level, in some of them a low one."""
    level = random.Random(f"{seed}:{position // 20}").choice([2, 8, 9, 10, 11, 12])
    return level + random.Random(f"{seed}.{position}").random()


class MoodyEngine(ToyEngine):
    """Writes 150 letters and an answer, all given by the seed and the position, and says how sure it is of them."""

    def __init__(self) -> None:
        super().__init__(self._write)

    @staticmethod
    def _write(seed: int, prefix: Tokens) -> str:
        rng = random.Random(seed)
        letters = "".join(rng.choices("abc \n", k=rng.randrange(50, 150)))
        return f"{letters} \\boxed{{{rng.randrange(3)}}}"[len(prefix) - len(ROOT) :]

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        plain, start = super().continue_prefix(request), len(request.prefix)
        if not request.num_top:
            return plain
        sure = [measure_token(request.seed, start + i) for i in range(len(plain.tokens))]
        top = np.repeat(-np.array(sure, dtype=np.float32).reshape(-1, 1), request.num_top, axis=1)
        return replace(plain, top_logprobs=top)


class UnsteadyMoodyEngine(UnsteadyEngine):
    """The same one, whose requests complete in another order."""

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        return MoodyEngine().continue_prefix(request)


def search(strategy: Any, **changes: Any) -> SearchResult:
    return run_search(strategy, **({"engine": MoodyEngine(), "scorer": None, "num_top": 20} | changes))


def tokens_of(result: SearchResult, candidate: Candidate) -> Tokens:
    return result.tree.prefix_tokens(candidate.node)[len(ROOT) :]


def confidences_of(result: SearchResult, candidate: Candidate) -> Vector:
    values = [step.confidences for step in result.tree.path_steps(candidate.node)]
    return np.concatenate([row for row in values if row is not None])


def is_dropped(result: SearchResult, candidate: Candidate) -> bool:
    return result.tree.nodes[candidate.node].finish == "dropped"


def find_first_weak(confidences: Sequence[float], window: int, threshold: float) -> int | None:
    """The end of the first window below the threshold, one token at a time."""
    for end in range(window, len(confidences) + 1):
        if np.mean(confidences[end - window : end]) < threshold:
            return end
    return None


@pytest.mark.parametrize("window", [1, 3, 12, 40, 1000])
@pytest.mark.parametrize("percentile", [10, 50, 100])
def test_solutions_end_at_their_first_weak_window_and_are_the_same_before_it(window: int, percentile: int) -> None:
    knobs = KNOBS | {"drop_window": window}
    whole = search(SelfConsistency(**knobs))
    result = search(SelfConsistency(**knobs, drop_percentile=percentile))
    assert len(result.candidates) == len(whole.candidates) == 24
    lowest = [measure_confidence(confidences_of(whole, c), "window", window=window) for c in whole.candidates[:8]]
    threshold = float(np.percentile([value for value in lowest if value is not None], percentile))
    for i, (ours, theirs) in enumerate(zip(result.candidates, whole.candidates, strict=True)):
        tokens = tokens_of(whole, theirs)
        end = None if i < 8 else find_first_weak(confidences_of(whole, theirs).tolist(), window, threshold)
        assert tokens_of(result, ours) == tokens[:end]
        assert is_dropped(result, ours) == (end is not None)
        assert ours.answer == (None if end is not None else theirs.answer)


def test_dropped_solutions_do_not_vote_and_save_tokens() -> None:
    whole, result = search(SelfConsistency(**KNOBS)), search(SelfConsistency(**KNOBS, drop_percentile=60))
    dropped = [candidate for candidate in result.candidates if is_dropped(result, candidate)]
    assert 0 < len(dropped) < 16
    assert sum(result.votes.values()) == 24 - len(dropped)
    assert result.usage.tokens < whole.usage.tokens
    num_kept = sum(len(tokens_of(result, candidate)) for candidate in result.candidates)
    assert result.usage.tokens == num_kept + result.usage.unused_tokens


def test_answer_in_the_text_of_a_dropped_solution_is_none() -> None:
    class EarlyAnswer(MoodyEngine):
        @staticmethod
        def _write(seed: int, prefix: Tokens) -> str:
            return ("\\boxed{7} " + "abc" * 40)[len(prefix) - len(ROOT) :]

    result = search(SelfConsistency(**KNOBS, drop_percentile=100), engine=EarlyAnswer())
    dropped = [candidate for candidate in result.candidates if is_dropped(result, candidate)]
    assert dropped
    assert all(candidate.answer is None for candidate in dropped)
    assert result.votes == {"7": 24 - len(dropped)}


def test_vote_that_is_decided_early_counts_dropped_solutions_as_over() -> None:
    strategy = SelfConsistency(**KNOBS, drop_percentile=60, stop_error=0.0001)
    result, whole = search(strategy), search(SelfConsistency(**KNOBS, drop_percentile=60))
    assert len(result.candidates) <= len(whole.candidates)
    for ours, theirs in zip(result.candidates, whole.candidates, strict=False):
        assert tokens_of(result, ours) == tokens_of(whole, theirs)
        assert ours.answer == theirs.answer
    assert sum(result.votes.values()) == sum(c.answer is not None for c in result.candidates)


@pytest.mark.parametrize("seed", range(4))
def test_tree_does_not_depend_on_timing(seed: int) -> None:
    strategy = SelfConsistency(**KNOBS, drop_percentile=40)
    steady, unsteady = search(strategy), search(strategy, engine=UnsteadyMoodyEngine(seed))
    assert steady.tree.to_dict() == unsteady.tree.to_dict()
    assert steady.votes == unsteady.votes


def test_nothing_is_measured_or_cut_into_parts_where_nothing_is_dropped() -> None:
    assert SelfConsistency().num_top == BestOfN().num_top == 0
    engine = MoodyEngine()
    search(BestOfN(**KNOBS), engine=engine, num_top=0)
    assert len(engine.requests) == 24


def test_stop_string_across_two_parts_ends_the_solution() -> None:
    class Plain(MoodyEngine):
        @staticmethod
        def _write(seed: int, prefix: Tokens) -> str:
            return ("0123456789" * 9)[len(prefix) - len(ROOT) :]

    knobs = KNOBS | {"sampling": SamplingParams(max_tokens=80, stop=("3456789012",))}
    result = search(SelfConsistency(**knobs, drop_percentile=0), engine=Plain())
    texts = {result.tree.path_text(c.node) for c in result.candidates if not is_dropped(result, c)}
    assert texts == {"0123456789012"}


def test_thought_that_is_ended_by_force_is_measured_without_what_was_put_in() -> None:
    thought = ThoughtBudget(
        is_open=lambda text: "</think>" not in text,
        forced_end=tuple(b"</think>It is \\boxed{5}"),
        max_tokens=30,
        answer_tokens=20,
    )
    strategy = SelfConsistency(**KNOBS, drop_percentile=50)
    result = search(strategy, thought=thought)
    finished = [candidate for candidate in result.candidates if not is_dropped(result, candidate)]
    assert 8 <= len(finished) < 24
    for candidate in finished:
        assert np.isnan(confidences_of(result, candidate)).sum() == len(thought.forced_end)


rows = st.lists(st.one_of(st.floats(0, 20, width=32), st.just(float("nan"))), min_size=1, max_size=40)


@given(rows, st.integers(1, 8), st.floats(0, 20), st.lists(st.integers(1, 40), max_size=4))
def test_parts_find_the_end_that_the_whole_text_has(
    sureness: list[float], window: int, threshold: float, cuts: list[int]
) -> None:
    top = -np.array(sureness, dtype=np.float32).reshape(-1, 1)
    floor, tokens = ConfidenceFloor(threshold, window), tuple(range(len(sureness)))
    ends = sorted({*(cut for cut in cuts if cut < len(tokens)), len(tokens)})
    first_weak = None
    for border, end in zip([0, *ends], ends, strict=False):
        written = Generation(tokens=tokens[:end], logprobs=(), finish="length", top_logprobs=top[:end])
        weak = floor.cut_weak(written, border)
        if weak is not None:
            first_weak = len(weak.tokens)
            break
    known = [i for i, value in enumerate(sureness) if value == value]
    values = [float(np.float32(sureness[i])) for i in known]
    means = [np.mean(values[i : i + window]) for i in range(len(values) - window + 1)]
    weak_ends = [known[i + window - 1] + 1 for i, mean in enumerate(means) if mean < threshold - 1e-4]
    close = [mean for mean in means if abs(mean - threshold + 1e-4) < 1e-6]
    assert close or first_weak == (weak_ends[0] if weak_ends else None)


def test_samples_that_were_dropped_are_not_cut_short() -> None:
    dropped = SampleResult(node=0, answer=None, grade="no_answer", score=None, tokens=3, finish="dropped")
    assert dropped.is_dropped
    assert not dropped.is_cut


def test_engine_that_measures_nothing_drops_nothing_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    result = search(SelfConsistency(**KNOBS, drop_percentile=90), engine=ToyEngine(measures=False))
    assert not any(is_dropped(result, candidate) for candidate in result.candidates)
    assert caplog.text.count("search.drop_percentile drops nothing") == 1


def test_floor_needs_a_measured_solution() -> None:
    knobs = DropKnobs(drop_percentile=50, drop_window=2)
    assert knobs.find_floor([]) is None
    assert knobs.find_floor([np.full(3, np.nan, dtype=np.float32)]) is None
    assert DropKnobs().find_floor([np.ones(3, dtype=np.float32)]) is None
    floor = knobs.find_floor([np.array(row, dtype=np.float32) for row in ([1, 3, 9], [6, 6, 6])])
    assert floor == ConfidenceFloor(4.0, 2)


@pytest.mark.parametrize("make", [SelfConsistency, BestOfN])
@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"drop_percentile": 101}, r"drop_percentile must be in \[0, 100\], got 101"),
        ({"drop_window": 0}, "drop_window must be an int >= 1, got 0"),
        ({"warm_up": 0}, "warm_up must be an int >= 1, got 0"),
        ({"drop_percentile": 10, "n": 8}, "warm_up must be below n=8, got 8: drop_percentile drops later"),
    ],
)
def test_wrong_knob_is_refused_by_name(make: Any, knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**knobs)

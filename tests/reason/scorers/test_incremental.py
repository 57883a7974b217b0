"""Incremental scoring equals scoring every path alone and whole, whatever the order and the batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Tokens
from reason.scorers.base import Floats
from reason.scorers.incremental import IncrementalScorer
from reason.scorers.read_limit import ReadLimit
from search.tree import Step

PROMPT = (7, 7, 7)


class HashReader:
    """Causal: the output after a token is a function of the tokens up to it. Records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tokens, int]] = []

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[np.ndarray]:
        self.calls += zip(sequences, starts, strict=True)
        await asyncio.sleep(0)
        return [
            np.array([[value(tokens[: i + 1])] for i in range(start, len(tokens))], dtype=np.float32)
            for tokens, start in zip(sequences, starts, strict=True)
        ]


def value(tokens: Tokens) -> float:
    return random.Random(repr(tokens)).random()


class OwnTokens:
    """The simplest format: the prompt's and the steps' ids, one output which is the score."""

    def encode_prompt(self, question: str, prompt: Tokens) -> Tokens:
        return prompt

    def encode_step(self, step: Step, *, first: bool) -> Tokens:
        return step.tokens

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        return np.array([piece[-1, 0] for piece in outputs])


def bound(reader: HashReader, limit: int = 1000) -> IncrementalScorer:
    return IncrementalScorer(
        reader=reader, step_format=OwnTokens(), limit=ReadLimit.from_setting(limit), question="?", prompt=PROMPT
    )


def steps(*pieces: Tokens) -> list[Step]:
    return [Step(piece, str(piece)) for piece in pieces]


def expected(path: Sequence[Step]) -> list[float]:
    tokens: Tokens = PROMPT
    scores = []
    for step in path:
        tokens += step.tokens
        scores.append(value(tokens))
    return scores


PATHS = st.lists(st.lists(st.sampled_from([(1,), (2, 1), (3, 1, 1), (4,)]), max_size=5), max_size=6)


@given(batches=st.lists(PATHS, max_size=4))
def test_incremental_scores_equal_scores_of_whole_paths(batches: list[list[list[Tokens]]]) -> None:
    reader = HashReader()
    scorer = bound(reader)
    for batch in batches:
        paths = [steps(*pieces) for pieces in batch]
        scored = asyncio.run(scorer.score(paths))
        assert [len(s or []) for s in scored.scores] == [len(p) for p in paths]
        for path, scores in zip(paths, scored.scores, strict=True):
            assert scores == pytest.approx(expected(path))
        assert scored.usage.scorer_calls == len(paths)
    spans = [(tokens[:end], end) for tokens, start in reader.calls for end in range(start + 1, len(tokens) + 1)]
    assert len(spans) == len(set(spans)), "some token was read twice"


class Worst(OwnTokens):
    """The score of a step is the lowest so far."""

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        return np.minimum.accumulate(super().score_steps(outputs))


@given(batches=st.lists(PATHS, max_size=4))
def test_incremental_score_may_depend_on_earlier_steps(batches: list[list[list[Tokens]]]) -> None:
    scorer = IncrementalScorer(
        reader=HashReader(), step_format=Worst(), limit=ReadLimit.from_setting(1000), question="?", prompt=PROMPT
    )
    for batch in batches:
        paths = [steps(*pieces) for pieces in batch]
        for path, scores in zip(paths, asyncio.run(scorer.score(paths)).scores, strict=True):
            assert scores == pytest.approx(list(np.minimum.accumulate(expected(path))) if path else [])


def test_child_step_costs_its_own_tokens() -> None:
    scorer = bound(HashReader())
    first = asyncio.run(scorer.score([steps((1, 2))])).usage
    child = asyncio.run(scorer.score([steps((1, 2), (3, 4, 5))])).usage
    again = asyncio.run(scorer.score([steps((1, 2), (3, 4, 5))] * 2)).usage
    assert first.scored_tokens == len(PROMPT) + 2
    assert child.scored_tokens == 3
    assert (again.scored_tokens, again.scorer_calls) == (0, 2)


def test_all_paths_go_to_the_reader_in_one_call_and_equal_ones_once() -> None:
    reader = HashReader()
    asyncio.run(bound(reader).score([steps((1,), (2,)), steps((1,), (3,)), steps((1,), (2,)), steps((1,))]))
    assert sorted(reader.calls) == [((*PROMPT, 1, 2), 3), ((*PROMPT, 1, 3), 4)]


def test_path_over_the_limit_is_not_scored_and_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    short, long = steps((1,)), steps((1,), (2, 2, 2))
    scorer = bound(HashReader(), limit=len(PROMPT) + 3)
    scored = asyncio.run(scorer.score([long, short]))
    asyncio.run(scorer.score([long]))
    assert [record.getMessage() for record in caplog.records] == [  # once per problem
        "a path of 7 tokens is not scored: the reward model reads at most 6 tokens (scorer.max_tokens=6); raise "
        "scorer.max_tokens or leave it null, or set scorer_reads=window and scorer_window below 3 (the prompt has 3)"
    ]
    assert scored.scores[0] is None
    assert scored.scores[1] == pytest.approx(expected(short))
    assert scored.usage.scorer_calls == 1


def test_no_paths_and_a_path_without_steps_cost_nothing() -> None:
    reader = HashReader()
    assert asyncio.run(bound(reader).score([])).scores == []
    assert asyncio.run(bound(reader).score([[]])).scores == [[]]
    assert reader.calls == []


def test_concurrent_score_calls_agree() -> None:
    async def both() -> None:
        scorer = bound(HashReader())
        a, b = steps((1,), (2,)), steps((1,), (3,))
        one, two = await asyncio.gather(scorer.score([a, b]), scorer.score([b, a]))
        assert one.scores == two.scores[::-1]

    asyncio.run(both())


@pytest.mark.parametrize("bad", [float("nan"), 1.5, -0.1])
def test_invalid_scores_of_a_format_are_an_error(bad: float) -> None:
    class Broken(HashReader):
        async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[np.ndarray]:
            return [np.full((len(t) - s, 1), bad) for t, s in zip(sequences, starts, strict=True)]

    with pytest.raises(FloatingPointError, match=r"outside \[0, 1\]"):
        asyncio.run(bound(Broken()).score([steps((1,))]))


def test_fewer_scores_than_steps_are_an_error() -> None:
    """Silent in other code: a missing separator shifts every later score to another step."""

    class Short(OwnTokens):
        def score_steps(self, outputs: Sequence[Floats]) -> Floats:
            return super().score_steps(outputs)[1:]

    scorer = IncrementalScorer(
        reader=HashReader(), step_format=Short(), limit=ReadLimit.from_setting(99), question="", prompt=PROMPT
    )
    with pytest.raises(AssertionError, match="steps got"):
        asyncio.run(scorer.score([steps((1,), (2,))]))


def test_failed_call_leaves_no_encoded_prefix() -> None:
    class Flaky(HashReader):
        failed = False

        async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[np.ndarray]:
            if not self.failed:
                self.failed = True
                raise RuntimeError("out of memory")
            return await super().encode(sequences, starts)

    scorer, path = bound(Flaky()), steps((1,), (2,))
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(scorer.score([path]))
    scored = asyncio.run(scorer.score([path]))
    assert scored.scores[0] == pytest.approx(expected(path))
    assert scored.usage.scored_tokens == len(PROMPT) + 2

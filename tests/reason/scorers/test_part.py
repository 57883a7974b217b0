"""The part of a path that a scorer reads: the answer behind the thought, or a window; tags are left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.scorers.part import read_part
from reason.thinking import SolutionReader, ThinkingFormat
from search.strategy import ScoredPaths, StepScores
from search.tree import Step

FORM = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>")
THINKS = SolutionReader(FORM, starts_inside=True, decode=lambda ids: "".join(map(chr, ids)))
WRITES = SolutionReader()


class ContextScorer:
    """Scores a step by all the text before it in its path, so that a step read in another context scores otherwise."""

    def __init__(self, longest: int = 10**9) -> None:
        self.longest = longest
        self.paths: list[str] = []

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        self.paths += ["".join(step.text for step in path) for path in paths]
        return ScoredPaths([self._score(path) for path in paths])

    def _score(self, path: Sequence[Step]) -> StepScores | None:
        texts = list(accumulate(step.text for step in path))
        return [hash(text) % 1000 / 1000 for text in texts] if len(texts[-1]) <= self.longest else None


def steps_of(*texts: str) -> list[Step]:
    return [Step(tuple(map(ord, text)), text, tuple(-0.1 for _ in text)) for text in texts]


def score(path: Sequence[Step], part: str, window: int = 100, scorer: ContextScorer | None = None) -> StepScores | None:
    scored = asyncio.run(read_part(scorer or ContextScorer(), part, window, THINKS).score([path]))
    return scored.scores[0]


def test_answer_is_read_as_if_there_were_no_thought() -> None:
    scorer = ContextScorer()
    scores = score(steps_of("long\n\n", "thought</think>\n\nSo ", "it is 7."), "answer", scorer=scorer)
    assert scorer.paths == ["\n\nSo it is 7."]
    assert scores is not None
    assert scores[0] is None
    assert list(scores[1:]) == list(score(steps_of("</think>\n\nSo ", "it is 7."), "answer") or [])


def test_rest_of_the_step_that_ends_the_thought_has_its_tokens() -> None:
    (rest,) = THINKS.drop_thought(steps_of("abc</think>7"))
    assert (rest.text, rest.tokens, rest.logprobs) == ("7", (ord("7"),), (-0.1,))


@pytest.mark.parametrize(
    "texts", [("thinking",), ("thinking\n\n", "more"), ("thinking</think>",), ("all</think>\n\n",)]
)
def test_path_without_text_behind_its_thought_has_no_score(texts: tuple[str, ...]) -> None:
    scorer = ContextScorer()
    assert score(steps_of(*texts), "answer", scorer=scorer) is None
    assert scorer.paths == []


def test_solution_of_a_model_that_writes_no_thoughts_is_all_answer() -> None:
    scorer = ContextScorer()
    asyncio.run(read_part(scorer, "answer", 100, WRITES).score([steps_of("a</think>", "b")]))
    assert scorer.paths == ["a</think>b"]


@pytest.mark.parametrize("part", ["thought", "window"])
def test_tags_are_not_read(part: str) -> None:
    scorer = ContextScorer()
    score(steps_of("<think>a\n\n", "b</think>\n\n7"), part, scorer=scorer)
    assert scorer.paths == ["a\n\nb\n\n7"]


paths_of_steps = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(paths_of_steps, st.integers(1, 60))
def test_no_window_is_longer_than_its_setting_unless_one_step_is(lengths: list[int], window: int) -> None:
    scorer = ContextScorer()
    path = steps_of(*[chr(97 + i % 26) * length for i, length in enumerate(lengths)])
    assert len(score(path, "window", window, scorer) or []) == len(path)
    assert all(len(text) <= max(window, *lengths) for text in scorer.paths)
    assert all(len(text) <= window or len(set(text)) == 1 for text in scorer.paths)


@given(paths_of_steps, st.integers(1, 60))
def test_steps_score_the_same_whether_a_path_grows_or_is_scored_at_once(lengths: list[int], window: int) -> None:
    path = steps_of(*[chr(97 + i % 26) * length for i, length in enumerate(lengths)])
    at_once = score(path, "window", window)
    assert at_once is not None
    for end in range(1, len(path) + 1):
        assert (score(path[:end], "window", window) or [None])[-1] == at_once[end - 1]


@given(st.integers(8, 200))
def test_long_paths_are_read_about_twice(window: int) -> None:
    scorer = ContextScorer()
    path = steps_of(*["ab"] * 500)
    score(path, "window", window, scorer)
    assert sum(map(len, scorer.paths)) <= 2.6 * 1000 + 2 * window


def test_window_as_long_as_the_path_reads_it_whole() -> None:
    path = steps_of("a", "b", "c")
    assert score(path, "window", 3) == score(path, "thought")


def test_path_with_a_window_that_is_not_scored_is_not_scored() -> None:
    assert score(steps_of("aaaa", "b" * 90), "window", 100, ContextScorer(longest=50)) is None

"""Steps are cut between tokens, and no token is lost or counted twice."""

from __future__ import annotations

import random

import pytest

from search.steps import DelimiterSteps, split_steps, step_ends

RULE = DelimiterSteps()
WORDS = ["a", "bc", "\n", "\n\n", ".\n\n", "\n\nX", "x\ny", " ", "ü"]


def word(tokens: tuple[int, ...]) -> str:
    return "".join(WORDS[t] for t in tokens)


def ends_one_token_at_a_time(tokens: tuple[int, ...], delimiter: str) -> list[int]:
    ends, start = [], 0
    for end in range(1, len(tokens) + 1):
        if delimiter in word(tokens[start:end]):
            ends.append(end)
            start = end
    if start < len(tokens):
        if ends and not word(tokens[start:]).strip():
            ends.pop()
        ends.append(len(tokens))
    return ends


@pytest.mark.parametrize("seed", range(300))
def test_step_ends_equal_those_of_reading_one_token_at_a_time(seed: int) -> None:
    rng = random.Random(seed)
    tokens = tuple(rng.choices(range(len(WORDS)), k=rng.randrange(120)))
    assert step_ends(tokens, word, RULE) == ends_one_token_at_a_time(tokens, "\n\n")


def test_steps_hold_every_token_and_logprob_exactly_once() -> None:
    rng = random.Random(0)
    tokens = tuple(rng.choices(range(len(WORDS)), k=500))
    logprobs = tuple(-float(i) for i in range(500))
    steps = split_steps(tokens, logprobs, word, RULE)
    assert tuple(t for s in steps for t in s.tokens) == tokens
    assert tuple(p for s in steps for p in s.logprobs) == logprobs
    assert "".join(s.text for s in steps) == word(tokens)


def test_delimiter_across_two_tokens_ends_the_step_with_the_second() -> None:
    assert step_ends((0, 2, 2, 1), word, RULE) == [3, 4]


def test_token_beyond_the_delimiter_stays_whole() -> None:
    assert step_ends((0, 5, 0), word, RULE) == [2, 3]


def test_blank_remainder_belongs_to_the_step_before() -> None:
    assert step_ends((0, 3, 2), word, RULE) == [3]


def test_generation_without_delimiter_is_one_step_and_an_empty_one_has_none() -> None:
    assert step_ends((0,) * 1000, word, RULE) == [1000]
    assert step_ends((), word, RULE) == []


def test_long_step_is_not_decoded_once_per_token() -> None:
    decoded = 0

    def counting(tokens: tuple[int, ...]) -> str:
        nonlocal decoded
        decoded += len(tokens)
        return word(tokens)

    step_ends((0,) * 9999 + (3,), counting, RULE)
    assert decoded < 40 * 10_000

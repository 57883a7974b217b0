"""What counts as the same text where a server sends no token for the end of it."""

from __future__ import annotations

import pytest

from decoding.core import FinishReason, Generation
from reason.bench.peers.server_matrix import count_same, describe_gap

END = 0
OURS = Generation(tokens=(5, 6, END), logprobs=(-1.0, -2.0, -0.5), finish="eos")


@pytest.mark.parametrize(
    ("tokens", "finish", "same"),
    [
        ((5, 6, END), "eos", 1),
        ((5, 6), "eos", 1),
        ((5, 6), "length", 0),
        ((5,), "eos", 0),
        ((5, 7), "eos", 0),
        ((5, 6, END, END), "eos", 0),
    ],
)
def test_only_the_end_may_be_missing(tokens: tuple[int, ...], finish: FinishReason, same: int) -> None:
    assert count_same([OURS], [Generation(tokens=tokens, logprobs=(), finish=finish)]) == same


def test_a_text_that_was_cut_has_no_end_that_may_be_missing() -> None:
    cut = Generation(tokens=(5, 6, 7), logprobs=(), finish="length")
    assert count_same([cut], [Generation(tokens=(5, 6), logprobs=(), finish="length")]) == 0


@pytest.mark.parametrize(
    ("logprobs", "gap"),
    [((-1.0, -2.0, -0.5), "0"), ((-1.0, -2.5), "0.5"), ((-1.0,), "1 of 3 came"), ((), "0 of 3 came")],
)
def test_log_probabilities_are_compared_token_by_token(logprobs: tuple[float, ...], gap: str) -> None:
    theirs = Generation(tokens=(5, 6, END)[: len(logprobs)], logprobs=logprobs, finish="eos")
    assert describe_gap(OURS, theirs) == gap

"""A router by entropies reads those of a server, which sends likely tokens, and takes an empty reply."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core import MAX_NUM_TOP, Generation, Usage
from reason.routing.entropy_adaptive import EntropyAdaptiveRouter


def test_it_asks_for_as_many_likely_tokens_as_there_can_be() -> None:
    """The entropy of one likely token alone is below every useful threshold."""
    assert EntropyAdaptiveRouter().num_top == MAX_NUM_TOP


def test_a_reply_without_tokens_changes_nothing() -> None:
    handover = EntropyAdaptiveRouter(min_stay=1, window=1).start("")
    empty = Generation(tokens=(), logprobs=(), finish="deadline", usage=Usage(calls=1))
    review = handover.review_turn(empty, "")
    assert (review.num_kept, review.next_turn.author) == (0, "draft")
    sure = Generation(tokens=(1,), logprobs=(-2.0,), finish="length", usage=Usage(), entropies=np.array([3.0]))
    assert handover.review_turn(sure, "").next_turn.author == "target"


def test_tokens_without_entropies_are_refused_in_a_sentence() -> None:
    blind = Generation(tokens=(1,), logprobs=(), finish="length", usage=Usage())
    with pytest.raises(ValueError, match="router=entropy_adaptive reads entropies"):
        EntropyAdaptiveRouter().start("").review_turn(blind, "")

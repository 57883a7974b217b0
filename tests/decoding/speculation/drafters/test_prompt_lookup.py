"""Prompt lookup equals a search by hand: longest n-gram first, its most recent earlier occurrence, then a copy."""

from __future__ import annotations

import random

import numpy as np
import pytest

from decoding.core import SamplingParams, Tokens
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import TRUST_LEVELS
from decoding.speculation.interfaces import Branch
from tests.support.streams import BranchStream


def search(text: Tokens, max_ngram: int, min_ngram: int) -> tuple[int, int]:
    """Where to copy from, and how many tokens before it agree with the text's end; (-1, 0) for nowhere."""
    for n in range(max_ngram, min_ngram - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if len(text) >= n and text[end - n : end] == text[-n:]:
                agree = next((m for m in range(end) if text[end - 1 - m] != text[-1 - m]), end)
                return end, agree
    return -1, 0


@pytest.mark.parametrize(("max_ngram", "min_ngram"), [(3, 1), (1, 1), (5, 2)])
def test_equals_a_search_by_hand(max_ngram: int, min_ngram: int) -> None:
    """Also below the anchor: the copy goes on while it is followed and the text lasts, then never again."""
    source = PromptLookup(max_ngram=max_ngram, min_ngram=min_ngram)
    for branches, levels in BranchStream(seed=4, vocabulary=6).run_rounds(source, 60):
        for level in levels:
            rows = zip(level.contexts, level.owners, level.next_tokens.ids_FK, level.next_tokens.trust_F, strict=True)
            for context, owner, ids, trust in rows:
                text = branches[owner].tokens[:]
                at, agree = search(text, max_ngram, min_ngram)
                copied = context[len(text) :]
                if at < 0 or copied != text[at : at + len(copied)] or at + len(copied) >= len(text):
                    assert ids.tolist() == [-1]
                else:
                    assert ids.tolist() == [text[at + len(copied)]]
                    assert trust == min(min(agree, TRUST_LEVELS) + len(copied), TRUST_LEVELS) - 1


def test_texts_of_other_branches_are_not_looked_at_and_branches_may_come_back() -> None:
    rng, source = random.Random(0), PromptLookup()
    texts = [tuple(rng.randrange(4) for _ in range(rng.randint(1, 600))) for _ in range(12)]
    for _ in range(30):
        texts = [text + tuple(rng.randrange(4) for _ in range(rng.randint(0, 3))) for text in texts]
        chosen = rng.sample(range(12), rng.randint(1, 12))
        state = source.root_states([Branch(i, "", texts[i], 0, SamplingParams(), 9) for i in chosen])
        assert state[:, 1].tolist() == [search(texts[i], 3, 1)[0] for i in chosen]
    assert source.num_texts == len(chosen), "only the last round's texts are kept"


def test_another_text_under_an_old_number_is_read_anew() -> None:
    source = PromptLookup()
    for text in ((1, 2, 3, 4, 1), (7, 8, 7)):
        state = source.root_states([Branch(0, "", text, 0, SamplingParams(), 9)])
    assert source.next_tokens(state).ids_FK.tolist() == [[8]]


def test_a_shorter_text_is_not_matched_with_the_rest_of_the_one_before() -> None:
    """The rest stays in the row where another branch is as long."""
    source, other = PromptLookup(), Branch(8, "", tuple(range(20, 40)), 0, SamplingParams(), 9)
    for text in ((1, 2, 3, 4, 5, 6, 2, 3, 10), (5, 2, 3)):
        state = source.root_states([Branch(7, "", text, 0, SamplingParams(), 9), other])
    assert state[:, 1:].tolist() == [[-1, 0], [-1, 0]]


def test_a_dead_copy_stays_dead() -> None:
    source = PromptLookup()
    state = source.root_states([Branch(0, "", (1, 2, 3, 1), 0, SamplingParams(), 9)])
    for token in (9, -1, 2, 1):
        state = source.advance(state, np.array([token]))
        assert source.next_tokens(state).ids_FK.tolist() == [[-1]]


def test_wrong_knobs_are_named() -> None:
    with pytest.raises(ValueError, match="min_ngram must be an int >= 1, got 0"):
        PromptLookup(min_ngram=0)
    with pytest.raises(ValueError, match="max_ngram must be at least min_ngram=3, got 2"):
        PromptLookup(max_ngram=2, min_ngram=3)

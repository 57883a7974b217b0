"""The deltas of a stream are the text, whole and in order, at the borders of words or tokens, and not too many."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from reason.serve.choices import TokenLogprob
from reason.serve.deltas import MAX_DELTAS, split_text

texts = st.text(alphabet="ab é\n\t字", max_size=60) | st.text(max_size=30)


@given(texts, st.integers(1, 300))
def test_deltas_are_the_text(text: str, times: int) -> None:
    deltas = split_text(text * times)
    assert "".join(delta.text for delta in deltas) == text * times
    assert 1 <= len(deltas) <= MAX_DELTAS
    assert all(delta.text for delta in deltas) or not text
    assert [delta.offset for delta in deltas] == [0, *accumulate(len(delta.text) for delta in deltas[:-1])]


def test_every_word_is_a_delta_and_a_long_one_several() -> None:
    assert [delta.text for delta in split_text("So  it is.\n\nFour ")] == ["So", "  it", " is.", "\n\nFour", " "]
    assert [len(delta.text) for delta in split_text("x" * 40)] == [16, 16, 8]


@given(st.lists(texts, max_size=500), st.booleans())
def test_tokens_stay_with_their_characters(words: list[str], spells: bool) -> None:
    tokens = [TokenLogprob(word, -0.1 * i) for i, word in enumerate(words)]
    text = "".join(words) + ("" if spells else "!")
    deltas = split_text(text, tokens)
    assert "".join(delta.text for delta in deltas) == text
    assert [token for delta in deltas for token in delta.logprobs or ()] == tokens
    assert len(deltas) <= MAX_DELTAS
    if spells:
        assert all("".join(token.text for token in delta.logprobs or ()) == delta.text for delta in deltas)

"""A view of a growing text is the tuple that it stands for, and stays so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.token_view import TokenView

parts_of_text = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=4)


@given(parts_of_text, st.slices(12), st.lists(st.integers(0, 9), min_size=1))
def test_view_is_the_tuple_that_it_shows_however_its_lists_grow(
    parts: list[list[int]], where: slice, more: list[int]
) -> None:
    tokens = tuple(token for part in parts for token in part)
    view = TokenView(*parts)
    for part in parts:
        part += more
    assert len(view) == len(tokens)
    assert tuple(view) == tokens
    assert view[where] == tokens[where]
    assert [view[i] for i in range(-len(tokens), len(tokens))] == [*tokens, *tokens]


def test_index_beyond_the_view_is_refused_though_the_list_has_grown() -> None:
    tokens = [1, 2]
    view = TokenView(tokens)
    tokens.append(3)
    for index in (2, -3):
        with pytest.raises(IndexError):
            view[index]

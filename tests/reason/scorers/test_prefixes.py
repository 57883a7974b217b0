"""Prefixes that are encoded to score paths: every new step once, in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.scorers.prefixes import EncodedPrefix, PrefixReading, plan_readings

PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4)  # (token, how often)


def walk(root: EncodedPrefix, pieces: list[tuple[int, int]]) -> EncodedPrefix:
    for token, count in pieces:
        root = root.get_child((token,) * count)
    return root


def settle(readings: list[PrefixReading]) -> None:
    for reading in readings:
        for prefix in reading.prefixes:
            assert prefix.score is None, "read twice"
            prefix.score = 0.5


@given(batches=st.lists(st.lists(PIECES, max_size=5), max_size=4))
def test_every_unscored_prefix_is_encoded_exactly_once(batches: list[list[list[tuple[int, int]]]]) -> None:
    root = EncodedPrefix.make_root((9, 9))
    for batch in batches:
        paths = [walk(root, pieces) for pieces in batch]
        settle(plan_readings(paths))
        for path in paths:
            node: EncodedPrefix | None = path
            while node is not None:
                assert node.is_scored
                node = node.parent
    assert not plan_readings(walk(root, pieces) for batch in batches for pieces in batch)


@given(batch=st.lists(PIECES, max_size=6))
def test_encoding_request_is_a_path_and_its_tail(batch: list[list[tuple[int, int]]]) -> None:
    root = EncodedPrefix.make_root((9, 9))
    for reading in plan_readings([walk(root, pieces) for pieces in batch]):
        last = reading.prefixes[-1]
        assert reading.tokens == last.encoded_tokens()
        assert len(reading.tokens) == last.end
        tail = tuple(token for prefix in reading.prefixes for token in prefix.piece)
        assert reading.tokens[reading.start :] == tail
        for prefix, rows in zip(reading.prefixes, reading.output_slices(), strict=True):
            assert reading.tokens[: reading.start + rows.stop] == prefix.encoded_tokens()
            assert tail[rows] == prefix.piece


def test_paths_with_equal_encodings_share_one_prefix() -> None:
    root = EncodedPrefix.make_root((1,))
    assert root.get_child((2, 3)) is root.get_child((2, 3))


def test_step_encoding_without_tokens_is_refused() -> None:
    """It would be scored at the token of the step before it."""
    with pytest.raises(ValueError, match="at least one token"):
        EncodedPrefix.make_root((1,)).get_child(())

"""Confidence of texts, against the definitions written out one token and one group at a time."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Vector
from search.confidence import (
    MAX_CONFIDENCE,
    MEASURES,
    ConfidenceMeasure,
    group_confidences,
    measure_confidence,
    token_confidences,
)

values = st.floats(0, MAX_CONFIDENCE, width=32)
texts = st.lists(values, min_size=1, max_size=60).map(lambda row: np.array(row, dtype=np.float32))
every_measure = pytest.mark.parametrize("measure", get_args(ConfidenceMeasure))


def groups_one_by_one(confidences: Vector, window: int) -> list[float]:
    last = max(0, len(confidences) - window)
    return [float(np.mean(confidences[i : i + window], dtype=np.float64)) for i in range(last + 1)]


@given(texts, st.integers(1, 80))
def test_groups_are_all_runs_of_window_tokens(confidences: Vector, window: int) -> None:
    np.testing.assert_allclose(
        group_confidences(confidences, window), groups_one_by_one(confidences, window), atol=1e-9
    )


@given(texts, st.integers(1, 80), st.floats(0.01, 1), st.integers(1, 80))
def test_measures_are_as_defined(confidences: Vector, window: int, bottom: float, tail: int) -> None:
    groups = sorted(groups_one_by_one(confidences, window))
    lowest = groups[: max(1, int(bottom * len(groups)))]
    expected = {
        "mean": np.mean(confidences, dtype=np.float64),
        "window": groups[0],
        "bottom": np.mean(lowest),
        "tail": np.mean(confidences[-tail:], dtype=np.float64),
    }
    for measure in get_args(ConfidenceMeasure):
        got = measure_confidence(confidences, measure, window=window, bottom=bottom, tail=tail)
        assert got == pytest.approx(expected[measure], abs=1e-9)


@every_measure
@given(texts, st.integers(1, 20), st.data())
def test_tokens_that_no_model_chose_change_nothing(
    measure: ConfidenceMeasure, confidences: Vector, window: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, len(confidences)), max_size=5))
    with_forced = np.insert(confidences, places, np.nan).astype(np.float32)
    expected = measure_confidence(confidences, measure, window=window, tail=window)
    assert measure_confidence(with_forced, measure, window=window, tail=window) == expected


@every_measure
@given(texts, st.integers(1, 20), st.floats(0, 10))
def test_surer_tokens_make_a_surer_text(
    measure: ConfidenceMeasure, confidences: Vector, window: int, more: float
) -> None:
    before = measure_confidence(confidences, measure, window=window, tail=window)
    after = measure_confidence(confidences + np.float32(more), measure, window=window, tail=window)
    assert before is not None
    assert after is not None
    assert after == pytest.approx(before + more, abs=1e-4)


@every_measure
def test_text_without_any_confidence_has_none(measure: ConfidenceMeasure) -> None:
    assert measure_confidence(np.zeros(0, dtype=np.float32), measure) is None
    assert measure_confidence(np.full(3, np.nan, dtype=np.float32), measure) is None


def test_names_of_the_settings_are_those_of_the_type() -> None:
    assert get_args(ConfidenceMeasure) == MEASURES


def test_peaked_distribution_is_surer_than_a_flat_one_and_neither_is_out_of_range() -> None:
    flat = np.full((1, 20), np.log(1 / 20), dtype=np.float32)
    peaked = np.log([[0.99, *[0.01 / 19] * 19]]).astype(np.float32)
    ruled_out = np.array([[0.0, *[-9999.0] * 19]], dtype=np.float32)
    sureness = [float(token_confidences(rows)[0]) for rows in (flat, peaked, ruled_out)]
    assert sureness == sorted(set(sureness))
    assert sureness[0] == pytest.approx(np.log(20), abs=1e-5)
    assert sureness[2] == pytest.approx(MAX_CONFIDENCE * 19 / 20)
    assert token_confidences(np.array([[1e-7]], dtype=np.float32)).tolist() == [0.0]

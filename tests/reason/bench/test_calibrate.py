"""Calibration of distance thresholds: equal steps by their numbers, recorded pairs, and the best threshold."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import pytest

from reason.bench.calibrate import DistanceRecorder, best_threshold, rate_thresholds, step_numbers
from reason.commands.bench.calibrate import run_program
from reason.scorers.embedders.hidden_states import HiddenStateEmbedder
from search.tree import Step


class TestDistanceCalibration:
    def test_steps_with_the_same_numbers_in_order_are_equal(self) -> None:
        assert step_numbers("First, x1: 4*8=32.5") == step_numbers("We get x1: 4*8=32.5") == ("1", "4", "8", "32.5")
        assert step_numbers("8*4") != step_numbers("4*8")

    def test_best_threshold_separates_equal_from_different_steps(self) -> None:
        best = best_threshold([0.1, 0.2, 0.3, 0.7, 0.8, 0.9], [True, True, True, False, False, False])
        assert 0.3 <= best.distance < 0.7
        assert (best.same_below, best.different_above, best.balanced_accuracy) == (1.0, 1.0, 1.0)

    def test_pairs_of_one_kind_only_are_refused(self) -> None:
        with pytest.raises(ValueError, match="compared no equal or no different steps"):
            rate_thresholds([0.1, 0.2], [True, True], [0.1])
        with pytest.raises(ValueError, match="compared no equal or no different steps"):
            best_threshold([], [])

    def test_searches_that_compared_nothing_are_refused_in_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["calibrate", "search.n=1", "limit=1"])
        assert run_program() == 2
        assert "compared no equal or no different steps; solve more problems" in capsys.readouterr().out

    def test_distance_recorder_sees_every_pair_and_changes_nothing(self) -> None:
        recorder = DistanceRecorder(HiddenStateEmbedder(distance_threshold=0.5))
        hidden: list[Any] = [np.array(v, dtype=np.float32) for v in ([1, 0], [1, 0], [0, 1])]
        steps = [Step((1,), text) for text in ("so 1", "get 1", "so 2")]
        vectors = asyncio.run(recorder.embed(steps, hidden))
        assert np.array_equal(vectors, np.stack(hidden))
        assert recorder.distances == pytest.approx([0.0, 1.0, 1.0])
        assert recorder.same == [True, False, False]
        assert (recorder.distance_threshold, recorder.needs_hidden_states) == (0.5, True)

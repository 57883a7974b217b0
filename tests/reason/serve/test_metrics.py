"""The metrics tell what drafts saved, where the engine's controller compares rounds."""

from __future__ import annotations

import pytest

from decoding.stats import EngineStats
from reason.serve.metrics import ServerMetrics


def format_metrics(stats: EngineStats | None) -> list[str]:
    return ServerMetrics(lambda: 0, lambda: 0, lambda: stats).format_metrics().decode().splitlines()


def test_seconds_of_rounds_and_seconds_saved_are_told() -> None:
    lines = format_metrics(EngineStats(seconds_rounds=3.0, seconds_saved=-0.5))
    assert "reason_engine_rounds_seconds_total 3.0" in lines
    assert "reason_engine_saved_seconds -0.5" in lines


@pytest.mark.parametrize("stats", [None, EngineStats(seconds_rounds=3.0)])
def test_what_is_not_known_is_not_told(stats: EngineStats | None) -> None:
    assert not any("saved_seconds" in line for line in format_metrics(stats))

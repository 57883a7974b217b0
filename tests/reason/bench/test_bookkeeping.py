"""What searches cost by themselves: seconds of the free models are of the clock that they are subtracted from."""

from __future__ import annotations

import pytest

from reason.bench.bookkeeping import BookkeepingCost, Stopwatch


def test_seconds_of_the_models_are_cpu_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 3.5])
    monkeypatch.setattr("reason.bench.bookkeeping.time.process_time", lambda: next(clock))
    watch = Stopwatch()
    with watch:
        pass
    assert watch.seconds == 2.5
    cost = BookkeepingCost("rebase", 4, 10, 9, cpu_s=3.0, models_s=watch.seconds, peak_bytes=900)
    assert cost.us_per_step == 50_000

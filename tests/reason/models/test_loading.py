"""What is loaded is said as it begins, and that it goes on; the collector rests meanwhile."""

from __future__ import annotations

import gc
import logging
import threading

import pytest
from transformers.utils import logging as transformers_logging

from reason.models import loading
from reason.models.loading import announce, hidden_progress_bars, paused_collector, remind


def test_line_comes_before_the_work_and_again_while_it_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "INTERVAL_S", 0.01)
    again = threading.Event()

    def note(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("loading a model ... "):
            again.set()
        return True

    caplog.set_level(logging.INFO, "reason.progress")
    caplog.handler.addFilter(note)
    try:
        with announce("loading a model"):
            assert caplog.messages[0] == "loading a model ..."
            assert again.wait(30)
    finally:
        caplog.handler.removeFilter(note)


def test_no_gap_reaches_two_seconds_within_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    """On a clock of its own, which waiting advances."""
    caplog.set_level(logging.INFO, "reason.progress")
    now, gaps = 100.0, []

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        gaps.append(seconds)
        return now >= 3700

    remind("loading a model", wait, lambda: now)
    assert len(caplog.messages) == len(gaps) - 1
    assert max(gaps) < 2
    assert caplog.messages[-1] == f"loading a model ... {now - gaps[-1] - 100:.0f} s"


def test_nothing_is_said_where_no_record_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "reason.progress")
    threads = threading.active_count()
    with announce("loading a model"):
        assert threading.active_count() == threads
    assert not caplog.messages


def test_reminders_end_with_the_work_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reason.progress")
    threads = threading.active_count()
    with pytest.raises(ValueError, match="no such model"), announce("loading a model"):
        raise ValueError("no such model")
    assert threading.active_count() == threads


def test_collector_rests_and_is_then_as_before() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_progress_bars_are_hidden_while_a_model_loads_and_then_as_before() -> None:
    assert transformers_logging.is_progress_bar_enabled()
    with hidden_progress_bars():
        assert not transformers_logging.is_progress_bar_enabled()
    assert transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with hidden_progress_bars():
            pass
        assert not transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.enable_progress_bar()

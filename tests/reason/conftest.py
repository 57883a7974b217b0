"""Settings that tests of several folders load."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tiny(tiny_writer: Path) -> list[str]:
    """Settings of a tiny target, which is also the scorer."""
    return [f"model.path={tiny_writer}", "scorer=expectation", f"scorer.path={tiny_writer}"]

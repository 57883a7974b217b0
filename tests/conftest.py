"""A tiny checkpoint for all tests, written once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_writer import save_writer

    return save_writer(tmp_path_factory.mktemp("writer"))

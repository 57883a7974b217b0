"""What tests share: two tiny checkpoints, made once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_writer import save_writer

    return save_writer(tmp_path_factory.mktemp("writer"))


@pytest.fixture(scope="session")
def tiny_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_writer import save_reader

    return save_reader(tmp_path_factory.mktemp("reader"))

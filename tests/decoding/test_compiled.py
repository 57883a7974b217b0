"""Machine code kept on disk is of these very sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest

from decoding import compiled as door

config: Any = numba.config


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "constants.py").write_text("WIDTH = 4\n")
    with monkeypatch.context() as patched:
        patched.setattr(door, "_HERE", tmp_path)
        door._sources.cache_clear()
        yield tmp_path
    door._sources.cache_clear()


def folder() -> Path:
    made: Any = door.compiled(lambda x: x + 1)
    return Path(made._cache.cache_path)


@pytest.mark.parametrize("chosen", ["", "elsewhere"])
def test_a_change_in_any_file_is_another_cache(
    sources: Path, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", chosen and str(tmp_path / chosen))
    before = folder()
    assert folder() == before
    assert before.is_relative_to(tmp_path / (chosen or "__pycache__"))
    (sources / "constants.py").write_text("WIDTH = 8\n")
    door._sources.cache_clear()
    assert folder() != before
    assert (chosen and str(tmp_path / chosen)) == config.CACHE_DIR

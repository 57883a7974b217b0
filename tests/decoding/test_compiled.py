"""The cache of machine code belongs to all sources of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest

from decoding import compiled as compiled_module

config: Any = numba.config


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "constants.py").write_text("WIDTH = 4\n")
    with monkeypatch.context() as patched:
        patched.setattr(compiled_module, "SOURCE_FOLDER", tmp_path)
        compiled_module.hash_sources.cache_clear()
        yield tmp_path
    compiled_module.hash_sources.cache_clear()


def cache_folder() -> Path:
    made: Any = compiled_module.compiled(lambda x: x + 1)
    return Path(made.dispatcher.stats.cache_path)


@pytest.mark.parametrize("chosen", ["", "elsewhere"])
def test_compiled_code_has_another_cache_folder_after_a_change_in_any_file(
    sources: Path, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", chosen and str(tmp_path / chosen))
    before = cache_folder()
    assert cache_folder() == before
    assert before.is_relative_to(tmp_path / (chosen or "__pycache__"))
    (sources / "constants.py").write_text("WIDTH = 8\n")
    compiled_module.hash_sources.cache_clear()
    assert cache_folder() != before
    assert (chosen and str(tmp_path / chosen)) == config.CACHE_DIR


def test_notes_of_compiled_loops_belong_to_the_sources(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    assert not compiled_module.is_compiled_ahead("loops")
    compiled_module.note_compiled("loops")
    assert compiled_module.is_compiled_ahead("loops")
    assert not compiled_module.is_compiled_ahead("others")
    (sources / "constants.py").write_text("WIDTH = 8\n")
    compiled_module.hash_sources.cache_clear()
    assert not compiled_module.is_compiled_ahead("loops")


def test_loop_that_makes_an_array_cannot_be_compiled_as_one_that_makes_none() -> None:
    def sum_copy(x: npt.NDArray[np.float64]) -> float:
        copied = np.empty(len(x))
        copied[:] = x
        return float(copied.sum())

    def sum_slice(x: npt.NDArray[np.float64]) -> float:
        return float(x[1:].sum())

    numbers = np.arange(4.0)
    assert compiled_module.compiled_in_place(sum_slice)(numbers) == 6
    with pytest.raises(numba.core.errors.NumbaError):
        compiled_module.compiled_in_place(sum_copy)(numbers)

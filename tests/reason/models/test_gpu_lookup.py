"""Whether torch can have a GPU is read without its import."""

from __future__ import annotations

import ctypes
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from reason.models.devices import may_have_gpu, require_device


def test_a_machine_with_a_gpu_may_have_one() -> None:
    assert may_have_gpu() or not torch.cuda.is_available()


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2'\n", True),
        ("cuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n", False),
        (None, True),
    ],
)
def test_build_of_torch_decides_and_what_is_unknown_may_have_one(
    versions: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if versions is not None:
        (tmp_path / "version.py").write_text(versions, encoding="utf-8")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    def refuse(library: str) -> None:
        raise OSError(f"{library}: no such file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)  # no driver
    assert may_have_gpu() is expected


def test_devices_of_every_machine_are_there() -> None:
    require_device("auto")
    require_device("cpu")
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, got 'tpu'"):
        require_device("tpu")

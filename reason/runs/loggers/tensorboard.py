"""Writes a run's numbers for TensorBoard, into the folder `tensorboard` of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path


class TensorboardLogger:
    """One event file in `folder`, with the settings as a text."""

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._writer = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
        rows = "\n".join(f"    {name}: {json.dumps(value, default=str)}" for name, value in settings.items())
        self._writer.add_text("settings", rows)

    def log_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def log_summary(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(f"summary/{name}", value)

    def close(self) -> None:
        self._writer.close()


def connection_errors() -> tuple[type[Exception], ...]:
    return (OSError,)


def connect(folder: Path, settings: Mapping[str, object]) -> TensorboardLogger:
    """Returns the logger of the run in `folder`."""
    return TensorboardLogger(folder / "tensorboard", settings)

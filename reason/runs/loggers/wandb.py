"""Sends a run's numbers to Weights & Biases; WANDB_PROJECT, WANDB_MODE and so on are read by its package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path


class WandbLogger:
    """One run of Weights & Biases, named after the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        package = import_module("wandb")
        self.errors: tuple[type[Exception], ...] = (package.Error, OSError)
        self._run = package.init(name=f"{folder.parent.name}/{folder.name}", dir=str(folder), config=dict(settings))

    def log_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def log_summary(self, numbers: Mapping[str, float]) -> None:
        self._run.summary.update(dict(numbers))

    def close(self) -> None:
        self._run.finish()


def connection_errors() -> tuple[type[Exception], ...]:
    return (import_module("wandb").Error, OSError)


def connect(folder: Path, settings: Mapping[str, object]) -> WandbLogger:
    """Returns the logger of the run in `folder`."""
    return WandbLogger(folder, settings)

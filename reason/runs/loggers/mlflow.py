"""Sends a run's numbers to MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME are read by its package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

MOST_PARAMETERS = 100
"""Parameters of one request, by the limits of MLflow's REST interface."""

LONGEST = 500
"""Characters of a parameter that every release takes."""


class MlflowLogger:
    """One run of MLflow, named after the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._package = import_module("mlflow")
        self.errors: tuple[type[Exception], ...] = (self._package.exceptions.MlflowException, OSError)
        self._package.start_run(run_name=f"{folder.parent.name}/{folder.name}")
        parameters = [(name_for_mlflow(name), str(value)[:LONGEST]) for name, value in settings.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._package.log_params(dict(parameters[start : start + MOST_PARAMETERS]))

    def log_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        self._package.log_metrics({name_for_mlflow(name): value for name, value in numbers.items()}, step=step)

    def log_summary(self, numbers: Mapping[str, float]) -> None:
        self._package.log_metrics({f"summary.{name_for_mlflow(name)}": value for name, value in numbers.items()})

    def close(self) -> None:
        self._package.end_run()


def name_for_mlflow(name: str) -> str:
    """Returns a name of the characters that MLflow takes.

    >>> name_for_mlflow("metrics.maj@4.value")
    'metrics.maj_at_4.value'
    """
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))


def connection_errors() -> tuple[type[Exception], ...]:
    return (import_module("mlflow").exceptions.MlflowException, OSError)


def connect(folder: Path, settings: Mapping[str, object]) -> MlflowLogger:
    """Returns the logger of the run in `folder`."""
    return MlflowLogger(folder, settings)

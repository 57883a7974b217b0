"""Opens the loggers that `log_to` names, and hands each its numbers; none is imported before it is named."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from reason.config.errors import ConfigError, suggest_name
from reason.runs.result import ProblemResult
from reason.runs.resume import flatten_settings
from reason.runs.summary import RunSummary, chosen_accuracy

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""The loggers, each with the package that it needs; the module of a logger has its name."""

log = logging.getLogger(__name__)


class RunLogger(Protocol):
    """One tracker of experiments, connected when it is made from the run's folder, settings and metadata.

    errors  what its package raises where numbers cannot be saved
    """

    errors: tuple[type[Exception], ...]

    def log_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        """Saves numbers of the run when `step` problems are done, or with an allocation samples."""

    def log_summary(self, numbers: Mapping[str, float]) -> None:
        """Saves the numbers of the whole run."""

    def close(self) -> None:
        """Ends the run there."""


class RunLoggers:
    """The loggers of one run. One that fails is given up with a warning: the run goes on."""

    def __init__(self, loggers: Mapping[str, RunLogger]) -> None:
        self._loggers = dict(loggers)

    def log_problem(self, last: ProblemResult, results: Sequence[ProblemResult], step: int) -> None:
        """Saves the newest of these results, and the accuracy and tokens of all."""
        accuracy = chosen_accuracy(results)
        numbers = {
            "tokens": sum(result.usage.tokens for result in results),
            "problem/tokens": last.usage.tokens,
            "problem/seconds": last.usage.seconds,
            "errors": sum(result.error is not None for result in results),
        }
        numbers |= {} if accuracy is None else {"accuracy": accuracy}
        self._call("log_numbers", numbers, step)

    def log_summary(self, summary: RunSummary) -> None:
        """Saves the numbers of the summary, by dotted name."""
        self._call("log_summary", summary_numbers(summary))

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: object) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                getattr(logger, method)(*arguments)
            except logger.errors as error:
                log.warning("log_to=%s failed and gets nothing more of this run (%s)", name, error)
                del self._loggers[name]


@contextmanager
def open_loggers(
    names: Sequence[str], folder: Path, config: Mapping[str, Any], metadata: Mapping[str, object]
) -> Iterator[RunLoggers]:
    """Connects the loggers, with the settings as their configuration, and closes them at the end.

    Raises: ConfigError where one is not known, not installed or cannot connect.
    """
    require_loggers(names)
    settings = flatten_settings(config) | flatten_settings({"run": metadata})
    loggers = RunLoggers({name: _connect(name, folder, settings) for name in names})
    try:
        yield loggers
    finally:
        loggers.close()


def require_loggers(names: object) -> None:
    """Raises ConfigError unless each name is a logger whose package is installed; imports nothing.

    >>> require_loggers(["tensorbord"])
    Traceback (most recent call last):
    reason.config.errors.ConfigError: log_to=[tensorbord] is no logger (did you mean tensorboard?); choose among: \
tensorboard, wandb, mlflow
    """
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"log_to must be a list, as log_to=[tensorboard], got {names!r}")
    for name in names:
        if name not in PACKAGES:
            hint = suggest_name(name, list(PACKAGES))
            raise ConfigError(f"log_to=[{name}] is no logger{hint}; choose among: {', '.join(PACKAGES)}")
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ConfigError(f"log_to=[{name}] needs a package that is not installed: pip install {PACKAGES[name]}")


def summary_numbers(summary: RunSummary) -> dict[str, float]:
    """Returns the numbers of a summary by dotted name.

    >>> summary_numbers({"metrics": {"maj@4": {"value": 0.5, "stderr": None}}, "seed": 0, "stopped": "done"})
    {'metrics.maj@4.value': 0.5, 'seed': 0}
    """
    return {
        name: value
        for name, value in flatten_settings(summary).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("settings.")
    }


def _connect(name: str, folder: Path, settings: Mapping[str, object]) -> RunLogger:
    module = import_module(f"{__package__}.{name}")
    try:
        logger: RunLogger = module.connect(folder, settings)
    except module.connection_errors() as error:
        raise ConfigError(f"log_to=[{name}] cannot connect ({error})") from error
    return logger

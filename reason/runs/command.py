"""Ends commands: exit codes, errors without a traceback, signals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from reason.config import compose
from reason.config.errors import ConfigError
from reason.config.renamed_settings import rename_overrides
from reason.runs.json_files import REFUSED, write_json

FAILED, WRONG_SETTINGS, INTERRUPTED = 1, 2, 130
"""Exit codes: no problem was solved, a setting is wrong, stopped by a signal."""


class SweepJobFailed(Exception):
    """A job of a sweep failed and has printed why. Hydra runs the other jobs and then raises the first of these."""

    def __init__(self, code: int) -> None:
        super().__init__(code)  # as an argument, so that pickling between processes keeps it
        self.code = code


def exit_with(code: int) -> NoReturn:
    """Ends the command with this exit code; in a sweep, ends this job only.

    Raises: SystemExit or SweepJobFailed.
    """
    if _in_sweep():
        raise SweepJobFailed(code)
    sys.exit(code)


@contextmanager
def report_config_errors(program: str) -> Iterator[None]:
    """Prints a ConfigError on stderr without a traceback; a job of a sweep also writes it to its folder (`REFUSED`).

    Raises: SystemExit or, in a sweep, SweepJobFailed.
    """
    try:
        yield
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr, flush=True)
        if _in_sweep():
            job = HydraConfig.get()
            refused = {"overrides": list(job.overrides.task), "error": str(error)}
            write_json(Path(job.runtime.output_dir) / REFUSED, refused)
        exit_with(WRONG_SETTINGS)


@contextmanager
def handle_termination(program: str) -> Iterator[None]:
    """Wraps a whole Hydra command: errors in settings become one sentence, and SIGTERM acts as Ctrl-C.

    Raises: SystemExit.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors instead of printing them
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.argv[1:] = rename_overrides(sys.argv[1:])  # before Hydra, which knows only the current names
    try:
        yield
    except SweepJobFailed as error:
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(
            f"{program}: {error if isinstance(error, ConfigError) else compose.explain_error(error)}", file=sys.stderr
        )
        sys.exit(WRONG_SETTINGS)


def _in_sweep() -> bool:
    return HydraConfig.get().mode is RunMode.MULTIRUN


def silence_progress_bars() -> None:
    """Switches off the progress bars of transformers, which show one bar per file of weights."""
    import transformers

    transformers.utils.logging.disable_progress_bar()

"""What the commands have in common: how they end, and that they keep quiet."""

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
from reason.runs.result_file import REFUSED, write_json

FAILED, WRONG_SETTINGS, INTERRUPTED = 1, 2, 130
"""Exit codes: nothing came of it, a setting is wrong, stopped by a signal."""


class JobFailed(Exception):
    """A job of a sweep that has said why. Hydra runs the others, and then raises the first of these."""

    def __init__(self, code: int) -> None:
        super().__init__(code)  # its argument, so that it survives the way back from another process
        self.code = code


def leave(code: int) -> NoReturn:
    """End the command with this exit code; of a sweep, end this job and let the others run.

    Raises: SystemExit or JobFailed.
    """
    if _in_sweep():
        raise JobFailed(code)
    sys.exit(code)


@contextmanager
def in_one_sentence(program: str) -> Iterator[None]:
    """A wrong setting is told on stderr without a traceback, and by a sweep's job in its folder too (`REFUSED`), for
    the report that gathers them. Raises: SystemExit or, in a sweep, JobFailed."""
    try:
        yield
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr, flush=True)
        if _in_sweep():
            job = HydraConfig.get()
            told = {"overrides": list(job.overrides.task), "error": str(error)}
            write_json(Path(job.runtime.output_dir) / REFUSED, told)
        leave(WRONG_SETTINGS)


@contextmanager
def ended_well(program: str) -> Iterator[None]:
    """Around a whole Hydra command: what it could not read is told in one sentence, and SIGTERM is Ctrl-C.

    Raises: SystemExit.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hands errors to us instead of printing them
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except JobFailed as error:
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"{program}: {error if isinstance(error, ConfigError) else compose.explain(error)}", file=sys.stderr)
        sys.exit(WRONG_SETTINGS)


def _in_sweep() -> bool:
    return HydraConfig.get().mode is RunMode.MULTIRUN


def quiet() -> None:
    """No progress bar for every file of weights: ours says what matters."""
    import transformers

    transformers.utils.logging.disable_progress_bar()

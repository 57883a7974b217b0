"""Ends commands: exit codes, errors without a traceback, signals."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from reason.config import compose
from reason.config.errors import ConfigError
from reason.config.renamed_settings import rename_overrides
from reason.runs.closed_output import CLOSED_OUTPUT, discard_stdout
from reason.runs.json_files import REFUSED, write_json
from reason.runs.output_check import check_run_folder
from reason.runs.output_folder import OutputError

FAILED, WRONG_SETTINGS, NOT_SAVED, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: no problem was solved; a setting or a saved file is wrong; results could not be saved (disk full, folder
gone); stopped by a signal. And `CLOSED_OUTPUT`: the results are saved, but stdout could not be written."""


class ClosedOutputError(Exception):
    """Stdout cannot be written."""


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
def printing() -> Iterator[None]:
    """Prints inside; where stdout cannot be written, nothing is printed any more. Raises: ClosedOutputError."""
    try:
        yield
    except OutputError:
        raise  # of a file
    except OSError as error:
        discard_stdout()
        raise ClosedOutputError(f"cannot print ({error.strerror or error})") from error


class StdoutConsole(Console):
    """A console that raises BrokenPipeError where the reader of stdout has gone; rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Raises the BrokenPipeError that is being handled."""
        raise


@contextmanager
def report_config_errors(program: str) -> Iterator[None]:
    """Prints a ConfigError on stderr without a traceback; a job of a sweep also writes it to its folder (`REFUSED`).

    Results that cannot be saved, and a stdout that cannot be written, are one sentence as well.

    Raises: SystemExit or, in a sweep, SweepJobFailed.
    """
    try:
        yield
    except ConfigError as error:
        _print_error(program, error)
        if _in_sweep():
            job = HydraConfig.get()
            refused = {"overrides": list(job.overrides.task), "error": str(error)}
            try:
                write_json(Path(job.runtime.output_dir) / REFUSED, refused)
            except OutputError as unsaved:
                _print_error(program, unsaved)
        exit_with(WRONG_SETTINGS)
    except OutputError as error:
        _print_error(program, error)
        exit_with(NOT_SAVED)
    except ClosedOutputError as error:
        _print_error(program, error)
        exit_with(CLOSED_OUTPUT)


@contextmanager
def handle_termination(program: str) -> Iterator[None]:
    """Wraps a whole Hydra command: errors in settings become one sentence, and SIGTERM acts as Ctrl-C.

    Raises: SystemExit.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors instead of printing them
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # before Hydra, which knows only the current names
        sys.argv[1:] = compose.prepare_overrides(rename_overrides(sys.argv[1:]))
        with compose_once(sys.argv[1:]):
            yield
        sys.stdout.flush()  # here, where it can still be said that it failed
    except BrokenPipeError:  # as of `--help | head`
        discard_stdout()
        sys.exit(CLOSED_OUTPUT)
    except SweepJobFailed as error:
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        _print_error(program, error if isinstance(error, ConfigError) else compose.explain_error(error))
        sys.exit(WRONG_SETTINGS)


@contextmanager
def compose_once(arguments: Sequence[str]) -> Iterator[None]:
    """Keeps Hydra from composing all settings a first time, which takes .3 s, only to read `hydra.mode` in them.

    Of our settings only experiments have it, so it is asked where an experiment, an option or `hydra` itself is named.
    """
    if any(argument.startswith("-") or "experiment" in argument or "hydra" in argument for argument in arguments):
        yield
        return
    find_mode = Hydra.get_mode
    Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = find_mode  # type: ignore[method-assign]


def _print_error(program: str, error: object) -> None:
    with suppress(OSError):  # stderr may be closed too; the exit code remains
        print(f"{program}: {error}", file=sys.stderr, flush=True)


def _in_sweep() -> bool:
    return HydraConfig.get().mode is RunMode.MULTIRUN


def freeze_imports() -> None:
    """Takes all objects that there are out of garbage collections, the one at the end of the process included.

    Those that the imports made stay anyway, and walking over them takes a second. Not in a sweep, whose next job would
    keep the garbage of the last one.
    """
    if not _in_sweep():
        gc.freeze()


class RunFolderCheck(Callback):
    """Checks the folder of a run, or those of a sweep, before Hydra writes into it (`hydra.callbacks`).

    Hydra turns exceptions of a callback into warnings, so the program ends here.
    """

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        _check_or_exit(config, Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        sweep = Path(config.hydra.sweep.dir)
        _check_or_exit(config, sweep, *(sorted(sweep.iterdir()) if sweep.is_dir() else ()))
        count = count_runs(config)
        if count is not None:
            print(f"{count:,} run{'' if count == 1 else 's'}, in {sweep}", flush=True)


def count_runs(config: DictConfig) -> int | None:
    """Returns how many runs a sweep has; None where another sweeper than Hydra's own chooses them as it goes."""
    sweeper = config.hydra.sweeper
    if not str(sweeper.get("_target_")).endswith(f".{BasicSweeper.__name__}"):
        return None
    choices = [f"{name}={value}" for name, value in (sweeper.get("params") or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    overrides = parser.parse_overrides([*choices, *config.hydra.overrides.task])
    return sum(map(len, BasicSweeper.split_arguments(overrides, None)))


def _check_or_exit(config: DictConfig, first: Path, *jobs: Path) -> None:
    name = str(config.hydra.job.name)
    try:
        check_run_folder(first, f"{name}.log", "multirun.yaml")
        for job in jobs:
            if job.is_symlink():
                raise ConfigError(f"{job} is a symbolic link, which is never written through; remove it")
            if job.is_dir():
                check_run_folder(job, f"{name}.log")
    except ConfigError as error:
        _print_error(name, error)
        sys.exit(WRONG_SETTINGS)

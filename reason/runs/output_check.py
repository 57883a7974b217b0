"""Checks the folder of a run before anything is written into it, and before a model loads."""

from __future__ import annotations

from pathlib import Path

from reason.config.errors import ConfigError
from reason.runs.output_folder import OutputError, OutputFolder
from reason.runs.resume import FILE
from reason.runs.run import INDEX, PAGES, RESULTS, SUMMARY, TREES


def check_run_folder(path: Path, *more: str) -> None:
    """Makes the folder of a run where it is missing, and tries to write into it.

    `more` are names of other files that will be written there.

    Raises: ConfigError if it cannot be written, or if a file or folder that a run writes is a link or of another kind.
    """
    folder = OutputFolder(path)
    try:
        folder.make()
        folder.refuse_links(FILE, RESULTS, SUMMARY, INDEX, *more, folders=(TREES, PAGES, ".hydra"))
        folder.probe()
    except OutputError as error:
        raise ConfigError(str(error)) from error

"""The log file of a run, which is no link either, and whose errors do not end the run."""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper
from pathlib import Path

from reason.runs.output_folder import open_to_append


class LogFile(logging.FileHandler):
    """Appends records to a file; where that fails, says so once and goes on, because results are elsewhere."""

    _has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record. *Mutates* the file."""
        try:
            super().emit(record)
        except OSError:  # from opening the file
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        """Prints the error on stderr, the first time."""
        if not self._has_failed:
            print(f"cannot write the log {self.baseFilename} ({sys.exc_info()[1]})", file=sys.stderr)
        self._has_failed = True

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(open_to_append(Path(self.baseFilename)), encoding="utf-8", errors="backslashreplace")

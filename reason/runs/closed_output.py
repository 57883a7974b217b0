"""Ends a command whose stdout cannot be written, such as that of `solve.py | head`."""

from __future__ import annotations

import os
import sys

CLOSED_OUTPUT = 141
"""Exit code where stdout could not be written."""


def discard_stdout() -> None:
    """Makes stdout write nowhere: Python flushes it at its end, which would fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

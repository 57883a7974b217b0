"""Runs the command `reason` as `python -m reason`, where its folder is not on the PATH."""

from __future__ import annotations

import sys

from reason.commands.main import run_program

if __name__ == "__main__":
    sys.exit(run_program())

"""Calls `reason bench single_thoughts`, from a checkout."""

from __future__ import annotations

import sys

from reason.commands.bench.single_thoughts import run_program

if __name__ == "__main__":
    sys.exit(run_program())

"""Calls `reason bench systems`, from a checkout."""

from __future__ import annotations

import sys

from reason.commands.bench.systems import run_program

if __name__ == "__main__":
    sys.exit(run_program())

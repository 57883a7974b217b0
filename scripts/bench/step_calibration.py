"""Calls `reason bench step_calibration`, from a checkout."""

from __future__ import annotations

import sys

from reason.commands.bench.step_calibration import run_program

if __name__ == "__main__":
    sys.exit(run_program())

"""Calls `reason collect-steps`, from a checkout."""

from __future__ import annotations

import sys

from reason.commands.collect_steps import run_program

if __name__ == "__main__":
    sys.exit(run_program())

"""Calls `reason bench start`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.start import run_program

if __name__ == "__main__":
    run_program()

"""Calls `reason bench load`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.load import run_program

if __name__ == "__main__":
    run_program()

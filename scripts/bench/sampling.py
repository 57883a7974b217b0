"""Calls `reason bench sampling`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.sampling import run_program

if __name__ == "__main__":
    run_program()

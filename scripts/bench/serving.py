"""Calls `reason bench serving`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.serving import run_program

if __name__ == "__main__":
    run_program()

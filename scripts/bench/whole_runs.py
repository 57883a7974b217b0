"""Calls `reason bench whole_runs`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.whole_runs import run_program

if __name__ == "__main__":
    run_program()

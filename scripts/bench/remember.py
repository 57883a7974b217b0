"""Calls `reason bench remember`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.remember import run_program

if __name__ == "__main__":
    run_program()

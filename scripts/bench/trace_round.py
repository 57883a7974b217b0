"""Calls `reason bench trace_round`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.trace_round import run_program

if __name__ == "__main__":
    run_program()

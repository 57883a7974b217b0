"""Calls `reason bench context_cost`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.context_cost import run_program

if __name__ == "__main__":
    run_program()

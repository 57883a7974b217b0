"""Calls `reason bench tune_tree`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.tune_tree import run_program

if __name__ == "__main__":
    run_program()

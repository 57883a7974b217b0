"""Calls `reason bench compare_sglang`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.compare_sglang import run_program

if __name__ == "__main__":
    run_program()

"""Calls `reason bench host_round`, from a checkout."""

from __future__ import annotations

from reason.commands.bench.host_round import run_program

if __name__ == "__main__":
    run_program()

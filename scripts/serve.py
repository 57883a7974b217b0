"""Calls `reason serve`, from a checkout."""

from __future__ import annotations

from reason.commands.serve import run_program

if __name__ == "__main__":
    run_program()

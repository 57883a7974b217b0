"""Calls `reason solve`, from a checkout."""

from __future__ import annotations

from reason.commands.solve import run_program

if __name__ == "__main__":
    run_program()

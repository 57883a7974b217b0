"""Calls `reason train`, from a checkout."""

from __future__ import annotations

from reason.commands.train import run_program

if __name__ == "__main__":
    run_program()

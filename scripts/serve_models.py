"""Calls `reason serve-models`, from a checkout."""

from __future__ import annotations

from reason.commands.serve_models import run_program

if __name__ == "__main__":
    run_program()

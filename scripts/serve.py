"""Calls `reason serve`, from a checkout."""

from __future__ import annotations

import sys

from reason.commands.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("serve", sys.argv[1:]))

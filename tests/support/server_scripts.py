"""Scripts that run as a user runs them, and the processes that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def start_script(folder: Path, name: str, *settings: str) -> subprocess.Popen[str]:
    """Starts scripts/NAME.py in this folder."""
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *settings]
    pipe = subprocess.PIPE
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def child_pids(pid: int) -> list[int]:
    """Those it started, oldest first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running_members(group: int) -> list[int]:
    """The processes of a group that still run."""
    pids = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            pids.append(int(file.parent.name))
    return pids

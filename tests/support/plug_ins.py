"""Runs scripts/solve.py in a folder that holds a plug-in module and its options, as a user's project does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT, SCRIPTS


def solve_with_plug_in(
    folder: Path, module: str, option: tuple[str, str], *overrides: str
) -> subprocess.CompletedProcess[str]:
    """Solves with the plug-in `mine.py` and one option.

    module     source of `mine.py`
    option     path of the yaml below the options' folder, such as `router/mine.yaml`, and its text
    overrides  settings of scripts/solve.py
    """
    path, text = option
    file = folder / "options" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    (folder / "mine.py").write_text(module)
    command = [sys.executable, str(SCRIPTS / "solve.py"), "--config-dir", "options", "plugins=[mine.py]", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=300, check=False
    )

"""The environment of a machine on which some packages are not installed."""

from __future__ import annotations

import os
from pathlib import Path


def hide_packages(folder: Path, *names: str) -> dict[str, str]:
    """The environment of a machine without these packages, and without the plugins that they give pytest."""
    for name in names:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    return {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "-p no:hydra_pytest"}

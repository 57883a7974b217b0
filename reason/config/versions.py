"""What a result was made with: our version and those of the packages that can change a number."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def versions() -> dict[str, str]:
    """Names to versions; `git` is the commit of a checkout, with `-dirty` where files were changed since."""
    found = {"reason": _version("reason-search"), "python": platform.python_version()}
    found |= {name: _version(name) for name in PACKAGES}
    commit = _commit()
    return found | ({"git": commit} if commit else {})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _commit() -> str | None:
    """The commit of the checkout this file is in; None in an installed package."""
    home = Path(__file__).resolve().parents[2]
    if not (home / ".git").exists():
        return None
    command = ["git", "-C", str(home), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None

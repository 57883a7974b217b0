"""Collects the versions that belong to a result: ours, and those of packages that can change a number."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def collect_versions() -> dict[str, str]:
    """Returns versions by name; `git` is the commit of a checkout, with `-dirty` where files changed since."""
    versions = {"reason": _package_version("reason-search"), "python": platform.python_version()}
    versions |= {name: _package_version(name) for name in PACKAGES}
    commit = _git_commit()
    return versions | ({"git": commit} if commit else {})


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _git_commit() -> str | None:
    """Returns the commit of the checkout of this file; None in an installed package."""
    home = Path(__file__).resolve().parents[2]
    if not (home / ".git").exists():
        return None
    command = ["git", "-C", str(home), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None

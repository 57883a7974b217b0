"""Finds the packages of the Python environment that will run SGLang, without importing any of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decoding.sglang_plugin import CPU_STAND_INS
from reason.engines.launcher.server_command import prepend_import_path

_LIST_PACKAGES = """
import importlib.metadata as m, importlib.util as u, json
found = {}
for name in ("sglang", "sglang-router", "reason-search"):
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
if u.find_spec("sgl_kernel"): found["sgl_kernel"] = "there"
print(json.dumps(found))
"""


def cpu_stand_ins() -> Path:
    """Returns the folder with plain PyTorch versions of the packages that SGLang needs and that exist for GPUs only."""
    return CPU_STAND_INS


@dataclass(frozen=True)
class PythonEnvironment:
    """An interpreter, the folder at the front of its import path, and the versions of its packages by name."""

    python: Path
    packages: Path | None
    versions: Mapping[str, str]

    @classmethod
    def unchecked(cls, python: str | None) -> PythonEnvironment:
        """Returns an environment whose packages are not known, for commands that are only shown."""
        return cls(Path(sys.executable if python is None else python), None, {})

    @classmethod
    def from_settings(cls, python: str | None, packages: str | None) -> PythonEnvironment:
        """Runs the interpreter `python` once to list its packages. Raises: ValueError naming the setting."""
        front = None if packages is None else Path(packages).expanduser().absolute()
        if packages == CPU_STAND_INS.name:
            front = CPU_STAND_INS
        if front is not None and not front.is_dir():
            raise ValueError(f"serve_models.packages={packages}: there is no such folder")
        given = Path(sys.executable if python is None else python).expanduser().absolute()
        program = given / "bin" / "python" if given.is_dir() else given
        try:
            listed = subprocess.run(
                [str(program), "-c", _LIST_PACKAGES],
                capture_output=True,
                text=True,
                timeout=60,
                env=os.environ | prepend_import_path(front),
            )
            versions = json.loads(listed.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise ValueError(f"serve_models.python={python}: {program} is not a Python that runs") from error
        return cls(program, front, versions)

    def require_package(self, package: str, remedy: str) -> None:
        """Raises ValueError naming the setting if the package is not there."""
        if package not in self.versions:
            raise ValueError(f"serve_models.python: {self.python} has no {package}; {remedy}")

"""What the Python has that is to run SGLang, found out without importing any of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reason.engines.launcher.server_command import search_path

_LOOK = """
import importlib.metadata as m, importlib.util as u, json
found = {}
for name in ("sglang", "sglang-router", "reason-search"):
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
if u.find_spec("sgl_kernel"): found["sgl_kernel"] = "there"
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Environment:
    """`versions` of the packages found there, by name."""

    python: Path
    packages: Path | None
    versions: Mapping[str, str]

    @classmethod
    def of(cls, python: str | None, packages: str | None) -> Environment:
        """Raises: ValueError naming the setting."""
        before = None if packages is None else Path(packages).expanduser().absolute()
        if before is not None and not before.is_dir():
            raise ValueError(f"serve_models.packages={packages}: there is no such folder")
        given = Path(sys.executable if python is None else python).expanduser().absolute()
        program = given / "bin" / "python" if given.is_dir() else given
        try:
            looked = subprocess.run(
                [str(program), "-c", _LOOK],
                capture_output=True,
                text=True,
                timeout=60,
                env=os.environ | search_path(before),
            )
            versions = json.loads(looked.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise ValueError(f"serve_models.python={python}: {program} is not a Python that runs") from error
        return cls(program, before, versions)

    def require(self, package: str, remedy: str) -> None:
        """Raises: ValueError naming the setting if it is not there."""
        if package not in self.versions:
            raise ValueError(f"serve_models.python: {self.python} has no {package}; {remedy}")

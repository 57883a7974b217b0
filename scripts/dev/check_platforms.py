"""Check that the tested versions can be installed with Python 3.11 to 3.13, on Linux and on macOS.

A resolver answers for the machine that it runs on. So it is asked here which packages `reason-search[full,serve]`
needs, and then, for every platform and version of Python, whether each of them exists at its tested version. Packages
that torch needs for CUDA on Linux alone are left out. Nothing is downloaded but metadata, from the public index alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
_LINUX = (
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux_2_5",
    "manylinux1",
)
PLATFORMS = {
    "Linux x86_64": [f"{tag}_x86_64" for tag in _LINUX],
    "Linux arm64": [f"{tag}_aarch64" for tag in _LINUX],
    "macOS arm64": ["macosx_14_0_arm64"],
}
LINUX_ONLY = ("nvidia-", "cuda-", "triton")


def main() -> None:
    pins = list_pins()
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda case: find_missing(pins, *case), product(PLATFORMS, PYTHONS)))
    for (platform, python), missing in zip(product(PLATFORMS, PYTHONS), answers, strict=True):
        print(f"{platform}, Python {python}: {missing or f'all {len(pins)} packages'}")
    if any(answers):
        sys.exit(1)


def list_pins() -> list[str]:
    """Returns the packages that a solver and a server need, each with its tested version."""
    constraints = ("-c", str(ROOT / "constraints.txt"))
    done = run_pip("--report", "-", *constraints, f"{ROOT}[full,serve]")
    if done.returncode:
        sys.exit(f"the tested versions do not fit together:\n{done.stderr}")
    packages = [(package["metadata"]["name"], package) for package in json.loads(done.stdout)["install"]]
    return [
        f"{name}=={package['metadata']['version']}"
        for name, package in packages
        if "dir_info" not in package["download_info"] and not name.startswith(LINUX_ONLY)
    ]


def find_missing(pins: list[str], platform: str, python: str) -> str:
    """Returns what pip says of packages that do not exist there; nothing where all do."""
    tags = [word for tag in PLATFORMS[platform] for word in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as folder:
        done = run_pip("--no-deps", "--target", folder, "--python-version", python, *tags, *pins)
    return "; ".join(line for line in done.stderr.splitlines() if line.startswith("ERROR")) if done.returncode else ""


def run_pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Asks pip what it would install, without any configuration of this machine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment["PIP_CONFIG_FILE"] = os.devnull
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()

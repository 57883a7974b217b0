"""Try the SGLang plug-in with another version of SGLang, in an environment of its own.

python scripts/dev/newest_sglang.py                      the newest version that pip knows
python scripts/dev/newest_sglang.py --version 0.5.24     this one

Installs it (three GB, some minutes; the folder stays), checks what the plug-in relies on, and runs the tests against
real servers. Ends with their status.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "tests" / "sglang" / "setup.sh"
CPU_STAND_INS = ROOT / "decoding" / "sglang_plugin" / "cpu_stand_ins"
CHECK = """
import sys
import sglang
from reason.decoding.sglang_plugin.draft_hooks import ALL_HOOKS
from reason.decoding.sglang_plugin.hooks import explain_version, require_hooks
if (reason := explain_version(sglang.__version__)) is not None:
    sys.exit(reason)
require_hooks(sglang.__version__, ALL_HOOKS)
print("every hook is there")
"""


def find_tested() -> str:
    """Returns the version that the tests run."""
    match = re.search(r"version=\$\{2:-([0-9.]+)\}", SETUP.read_text(encoding="utf-8"))
    assert match is not None, f"{SETUP} names no version"
    return match[1]


def find_newest() -> str:
    """Returns the newest version that pip can install here."""
    command = [sys.executable, "-m", "pip", "index", "versions", "sglang"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True)
    match = re.match(r"sglang \(([^)]+)\)", listed.stdout)
    if listed.returncode or match is None:
        sys.exit(f"pip index versions sglang lists no versions: {(listed.stdout + listed.stderr).strip()[-200:]}")
    return match[1]


def try_version(version: str, folder: Path) -> int:
    """Installs a version of SGLang, checks the hooks and runs the tests; returns the exit status."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run(["sh", SETUP, folder, version], check=True)
    variables = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(CPU_STAND_INS)}
    checked = subprocess.run([python, "-c", CHECK], check=False, env={**os.environ, **variables})
    if checked.returncode:
        return checked.returncode
    tests = [sys.executable, "-m", "pytest", "tests/sglang", "-q"]
    variables = {"SGLANG_VENV": str(folder)}
    return subprocess.run(tests, check=False, cwd=ROOT, env={**os.environ, **variables}).returncode


def run_program() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", help="version of SGLang; the newest by default")
    parser.add_argument("--folder", type=Path, help="environment; .venv-sglang-VERSION by default")
    args = parser.parse_args()
    version = args.version or find_newest()
    if version == find_tested():
        print(f"{version} is the tested version: make sglang runs the tests with it")
        return
    sys.exit(try_version(version, args.folder or ROOT / f".venv-sglang-{version}"))


if __name__ == "__main__":
    run_program()

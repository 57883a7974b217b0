"""`scripts/dev/newest_sglang.py` with a pip, an interpreter and a pytest that only write down what they are asked."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SCRIPTS

LISTING = """\
sglang ({newest})
Available versions: {newest}, 0.5.23, 0.5.22
"""
PYTEST = "import os, sys\nprint('pytest', *sys.argv[1:], os.environ['SGLANG_VENV'], flush=True); sys.exit(5)"
INTERPRETER = """\
#!/bin/sh
echo "interpreter $@" | head -1
case "$1 $2" in
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-c "*) exit {status} ;;
esac
"""


@dataclass(frozen=True)
class Workshop:
    """A folder with the stand-ins."""

    folder: Path

    def write(self, listing: str, hooks_status: int = 0, pip_status: int = 0) -> None:
        pip = f"import sys\nprint({listing!r}); sys.exit({pip_status})"
        for name, program in (("pip", pip), ("pytest", PYTEST)):
            package = self.folder / name
            package.mkdir()
            (package / "__init__.py").touch()
            (package / "__main__.py").write_text(program)
        interpreter = self.folder / "python3"
        interpreter.write_text(INTERPRETER.format(status=hooks_status))
        interpreter.chmod(0o755)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Returns the exit code, and what was written to stdout and stderr."""
        variables = {"PYTHONPATH": str(self.folder), "PYTHON": str(self.folder / "python3")}
        script = SCRIPTS / "dev" / "newest_sglang.py"
        done = subprocess.run(
            [sys.executable, script, "--folder", self.folder / "venv", *arguments],
            check=False,
            env=os.environ | variables,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_the_tested_version_is_the_newest_one(workshop: Workshop) -> None:
    workshop.write(LISTING.format(newest="0.5.23"))
    code, output = workshop.run()
    assert code == 0
    assert output == "0.5.23 is the tested version: make sglang runs the tests with it\n"
    assert not (workshop.folder / "venv").exists()


def test_a_newer_version_is_installed_checked_and_tested(workshop: Workshop) -> None:
    workshop.write(LISTING.format(newest="0.5.24.post1"))
    code, output = workshop.run()
    venv = workshop.folder / "venv"
    assert code == 5, "the status is that of the tests"
    lines = output.splitlines()
    assert any("pip install" in line and " sglang==0.5.24.post1 " in line for line in lines)
    assert any(line.startswith("interpreter -c") for line in lines)
    assert lines[-1] == f"pytest tests/sglang -q {venv}"
    again = workshop.run()[1]
    assert "pip install" not in again, "what was installed stays"
    assert "pytest tests/sglang" in again


def test_no_tests_run_where_a_hook_is_gone(workshop: Workshop) -> None:
    workshop.write(LISTING.format(newest="0.5.24"), hooks_status=3)
    code, output = workshop.run()
    assert code == 3
    assert "pytest tests" not in output


def test_a_version_can_be_named(workshop: Workshop) -> None:
    workshop.write("pip is not asked", pip_status=1)
    code, output = workshop.run("--version", "0.5.99")
    assert code == 5
    assert " sglang==0.5.99 " in output


@pytest.mark.parametrize(("listing", "status"), [("ERROR: No matching distribution found for sglang", 1), ("what?", 0)])
def test_a_pip_that_lists_nothing_ends_with_a_sentence(workshop: Workshop, listing: str, status: int) -> None:
    workshop.write(listing, pip_status=status)
    code, output = workshop.run()
    assert code == 1
    assert output.startswith("pip index versions sglang lists no versions: ")
    assert listing in output
    assert "Traceback" not in output

"""The soak: short rounds of all parts find nothing; what is done to it on purpose is found, and named with its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SCRIPTS

SOAK = SCRIPTS / "dev" / "soak"
TOY_PART = """
import os, subprocess, time
from contextlib import contextmanager
from part_program import RoundReport, run_part

class ToyAttack:
    def run_round(self, seed, rng):
        report = RoundReport()
        {act}
        return report

@contextmanager
def open_attack(settings):
    yield ToyAttack()

run_part(open_attack)
"""
STARTER = """
import sys
from pathlib import Path
from part_program import PartSettings
from parts import PartProgram
from soak import soak

part, folder = map(Path, sys.argv[1:])
settings = PartSettings(folder, limit_s=10.0)
sys.exit(soak([PartProgram("toy", [part], num_limits=1)], settings, range(70, 75), minutes=1.0))
"""


SHORT_ROUNDS = {"kills": 201, "hostile": 7, "cancels": 7, "clients": 7}
"""A seed for each part; 201 draws one SIGKILL, late enough to hit a run that has begun."""


def start(*command: str | Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(SOAK), "COLUMNS": "200"}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, text=True, stdout=pipe, stderr=both)


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Returns the exit code, and the lines of stdout and stderr."""
    out, _ = process.communicate(timeout=900)
    return process.returncode, out.splitlines()


@pytest.fixture(scope="module", autouse=True)
def short_rounds() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Runs a short round of every part, all at once and while the other tests run: they wait more than they compute."""
    processes = {
        part: start(SOAK / "soak.py", "--round-seed", str(seed), "--scale", "0.1", "--parts", part)
        for part, seed in SHORT_ROUNDS.items()
    }
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


def soak_with_toy(folder: Path, act: str) -> tuple[int, list[str]]:
    """Soaks with one part, each of whose five rounds does `act`."""
    part = folder / "toy.py"
    part.write_text(TOY_PART.format(act=act))
    (folder / "soak").mkdir()
    return finish(start("-c", STARTER, part, folder / "soak"))


def test_rounds_without_faults_end_with_zeros_and_leave_no_folder(tmp_path: Path) -> None:
    code, lines = soak_with_toy(tmp_path, "report.counts['things'] += 3")
    assert (code, lines[-1]) == (0, "lost: 0, hung: 0, leaked: 0"), "\n".join(lines)
    assert [line for line in lines if "again" in line] == []
    assert not (tmp_path / "soak").exists()


@pytest.mark.parametrize(
    ("act", "verdict", "fault"),
    [
        ("report.lost += ['row 3'] if seed == 72 else []", "lost: 1, hung: 0, leaked: 0", "lost: row 3"),
        ("1 / (seed - 72)", "lost: 1, hung: 0, leaked: 0", "ZeroDivisionError: division by zero"),
        ("seed == 72 and time.sleep(1000)", "lost: 0, hung: 1, leaked: 0", "hung: the round has no end within 10 s"),
        ("os.open('/dev/null', 0) and [os.open('/dev/null', 0) for _ in range(20)]", "", "descriptors grew"),
        ("seed == 72 and subprocess.Popen(['sleep', '1000'])", "lost: 0, hung: 0, leaked: 1", "outlived its program"),
    ],
)
def test_fault_is_reported_with_the_command_that_repeats_it(act: str, verdict: str, fault: str, tmp_path: Path) -> None:
    code, lines = soak_with_toy(tmp_path, act)
    text = "\n".join(lines)
    assert code == 1, text
    assert lines[-1] == verdict or not verdict, text
    assert fault in text
    assert "again: python scripts/dev/soak/soak.py --parts toy --round-seed 7" in text
    if "hung" in fault:
        (log,) = (tmp_path / "soak").glob("toy-1/log.txt")
        assert "in run_round" in log.read_text()  # the stacks of the stuck process


def test_lost_doubled_and_changed_rows_are_named() -> None:
    code, lines = finish(start("-m", "doctest", *(SOAK / name for name in ("rows.py", "gauges.py", "byte_model.py"))))
    assert (code, lines) == (0, [])


@pytest.mark.parametrize("part", SHORT_ROUNDS)
def test_short_round_of_every_part_finds_nothing(part: str, short_rounds: dict[str, subprocess.Popen[str]]) -> None:
    code, lines = finish(short_rounds[part])
    assert (code, lines[-1]) == (0, "lost: 0, hung: 0, leaked: 0"), "\n".join(lines)
    assert any(line.startswith(f"round {SHORT_ROUNDS[part]} {part}: ") for line in lines)

"""A process forked from one with a solver: uses of that solver are refused, closing it does nothing, nothing hangs.

Forks are made by programs of their own (`tests.support.fork_programs`), which kill a fork that hangs. A fork's outcome
is the text of its result and its exit status.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from decoding.fork import ForkGuard
from tests.support.paths import ROOT

USES = ["solve", "asolve", "solve_many", "asolve_many", "with_options", "run_coroutine", "generate"]
REFUSAL = "this solver or engine runs in threads of process "
ADVICE = "threads do not survive a fork. Open a solver here, or start the process with multiprocessing's 'spawn' method"


def run_program(name: str) -> dict[str, Any]:
    """Returns the outcomes that a program of `tests.support.fork_programs` prints."""
    # an ignored coroutine would be a warning on standard error
    command = [sys.executable, "-W", "default", "-m", "tests.support.fork_programs", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "never awaited" not in done.stderr
    assert "Timeout (" not in done.stderr, done.stderr[-6000:]
    outcomes: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


@pytest.fixture(scope="module")
def local() -> dict[str, Any]:
    return run_program("local")


def assert_refused(outcome: list[Any], uses: list[str]) -> None:
    """The fork got one sentence for each use, and ended."""
    text, status = outcome
    lines = text.splitlines()
    assert [line.split(": ")[0] for line in lines] == uses
    assert all(REFUSAL in line and line.endswith(ADVICE) for line in lines)
    assert status == 0


def test_uses_of_the_parents_solver_are_refused(local: dict[str, Any]) -> None:
    assert_refused(local["used"], [*USES, "assert_invariants"])


def test_closing_the_parents_solver_returns_and_the_fork_ends(local: dict[str, Any]) -> None:
    assert local["closed"] == ["closed", 0]


def test_parent_goes_on_undisturbed(local: dict[str, Any]) -> None:
    assert local["after"] == local["before"] != ""


def test_solver_that_has_not_solved_yet_works_in_a_fork(local: dict[str, Any]) -> None:
    assert local["unused"] == [local["before"], 0]


def test_fork_opens_a_solver_of_its_own_though_the_parent_used_helper_threads(local: dict[str, Any]) -> None:
    """GNU's OpenMP made this hang with two threads and crash with four."""
    assert local["own"] == [local["before"], 0]


def test_worker_of_a_data_loader_is_told(local: dict[str, Any]) -> None:
    assert REFUSAL in local["loader"]
    assert local["loader"].strip().endswith(ADVICE)


def test_process_of_multiprocessing_closes_and_ends(local: dict[str, Any]) -> None:
    assert local["process"] == 0


def test_fork_during_searches_disturbs_none_and_solves_with_its_own_solver() -> None:
    outcomes = run_program("solving")
    assert outcomes["forks"] == [[f"closed {outcomes['own']}", 0]] * 3
    assert outcomes["same"]


def test_solver_over_two_engines_is_refused_and_closed_alike() -> None:
    outcomes = run_program("router")
    assert_refused(outcomes["used"], [*USES, "assert_invariants"])
    assert outcomes["closed"] == ["closed", 0]
    assert outcomes["same"]


def test_engines_and_readers_over_servers_are_refused_and_closed_alike() -> None:
    outcomes = run_program("servers")
    assert_refused(outcomes["used"], USES)
    assert outcomes["closed"] == ["closed", 0]
    assert outcomes["same"]
    for part in ("sglang_engine", "sglang_reader"):
        assert REFUSAL in outcomes[part][0]
        assert outcomes[part][1] == 0
    assert outcomes["sglang_close"] == [["None", 0], ["None", 0]]


def test_guard_belongs_to_the_process_of_the_first_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ForkGuard()
    monkeypatch.setattr("os.getpid", lambda: 12)
    assert not guard.is_forked
    guard.claim_process()
    guard.claim_process()
    monkeypatch.setattr("os.getpid", lambda: 34)
    assert guard.is_forked
    with pytest.raises(RuntimeError, match=f"^{REFUSAL}12, and this is process 34, a fork of it: {ADVICE}$"):
        guard.claim_process()

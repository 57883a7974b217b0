"""Runs programs with their tests in processes of their own, with limits of time and memory. This is no sandbox.

A program has the rights of the user: it can read and change the user's files. Where the system allows it (Linux with
`unshare` for users) it has no network.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WORKER = Path(__file__).with_name("program_worker.py")
NO_NETWORK = ("unshare", "--user", "--map-root-user", "--net", "--")
START_S = 10.0
"""Seconds that the start of a process may take on top of the limit of the program."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProgramRunner:
    """Runs programs, one at a time, each in an empty folder that is deleted afterwards.

    timeout_s   processor seconds of a program with its tests, and wall clock with `START_S` on top
    memory_mib  address space of the process
    """

    timeout_s: int
    memory_mib: int

    def find_failure(self, program: str, tests: str, setup: str = "") -> str | None:
        """Returns why a program fails its tests; None if it passes all of them. `setup` runs before it.

        >>> runner = ProgramRunner(timeout_s=10, memory_mib=512)
        >>> runner.find_failure("def double(x): return 2 * x", "assert double(3) == 6") is None
        True
        >>> runner.find_failure("def double(x): return x", "assert double(3) == 6")
        'AssertionError (tests, line 1)'
        """
        password = secrets.token_hex()
        job = {
            # parts, since `from __future__` must be the first line of a program
            "parts": {"setup": setup, "program": program, "tests": tests},
            "password": password,
            "seconds": self.timeout_s,
            "memory_bytes": self.memory_mib << 20,
        }
        with tempfile.TemporaryDirectory(prefix="reason-program-") as folder:
            output = self._run_worker(json.dumps(job), folder)
        if output is None:
            return f"no end within {self.timeout_s} s"
        try:
            reply = json.loads(output)
        except ValueError:
            return "the process ended before the tests did (time, memory, or it left)"
        return None if reply.get("passed") == password else str(reply.get("failed"))

    def _run_worker(self, job: str, folder: str) -> str | None:
        """Returns what the worker writes; None if it does not end in time. It and what it began are then killed."""
        process = subprocess.Popen(
            [*find_isolation(), sys.executable, "-I", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=folder,
            env={"PATH": os.defpath, "PYTHONHASHSEED": "0", "HOME": folder},  # no keys from the environment
            start_new_session=True,
        )
        try:
            return process.communicate(job + "\n", timeout=self.timeout_s + START_S)[0]
        except subprocess.TimeoutExpired:
            return None
        finally:
            # the group: a program may have begun others, and they hold the pipe open
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@cache
def find_isolation() -> tuple[str, ...]:
    """Returns what begins a command that is to have no network; nothing, with a warning, where that cannot be had."""
    try:
        subprocess.run([*NO_NETWORK, "true"], check=True, capture_output=True, timeout=START_S)
    except (OSError, subprocess.SubprocessError):
        log.warning("programs of candidates can reach the network: this system has no `unshare` for users")
        return ()
    return NO_NETWORK


def explain_no_runner() -> str | None:
    """Returns why programs cannot be run on this system; None if they can."""
    try:
        import resource  # noqa: F401
    except ImportError:
        return "this system has no limits of memory and time for a process (module resource)"
    return None

"""A program that is attacked, or that attacks: in a session of its own, with time limits, and stacks where it hangs."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gauges import find_session
from part_program import ROOT

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",  # SIGABRT then writes the stacks of all threads to the log
}
DUMP_S = 10.0
DESCENDANTS_S = 10.0
"""Seconds in which what a program has started must have ended after it."""
LASTING_FILES = ("torchinductor_",)
"""What a program may leave in the temporary folder: an empty folder of torch's."""


class Child:
    """A started Python program. Its stderr goes to `log`, its stdout too unless it `talks`: then `ask` reads it.

    Its session and its temporary folder are its own, so that what it leaves behind is known to be its own.
    """

    def __init__(
        self, command: Sequence[str | Path], log: Path, *, talks: bool = False, more: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._unread = b""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = log.with_suffix(".tmp")
        self._temporary.mkdir(exist_ok=True)
        # Ctrl-C is ignored in a background job, and would be in what it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with log.open("ab") as file:
                self._process = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=ROOT,
                    env=os.environ | ENVIRONMENT | {"TMPDIR": str(self._temporary)} | dict(more or {}),
                    stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talks else file,
                    stderr=file,
                    start_new_session=True,
                    bufsize=0,
                )
        finally:
            signal.signal(signal.SIGINT, before)

    @property
    def pid(self) -> int:
        """The process; its session has the same number."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended."""
        return self._process.poll() is not None

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the program alone, unless it has ended."""
        self._process.send_signal(number)

    def ask(self, line: str, limit_s: float) -> str | None:
        """Writes a line and returns the answer, "" if the program ended instead. None: it hangs."""
        with suppress(BrokenPipeError):  # it has ended
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n".encode())
        return self.read_line(limit_s)

    def read_line(self, limit_s: float) -> str | None:
        """Returns the next line of stdout, "" if the program ended instead. None: it hangs."""
        assert self._process.stdout is not None
        end = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            received = self._process.stdout.read(1 << 16)
            if not received:
                return ""
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def end_input(self) -> None:
        """Closes the pipes of a program that talks: it ends when it reads the end of its input."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def finish(self, limit_s: float) -> int | None:
        """Waits for the end and returns the exit code. None: it hung, and was killed after its stacks were logged."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.dump_and_kill()
            return None

    def dump_and_kill(self) -> None:
        """Has the stacks of all threads written to the log, then ends the whole session."""
        self.send_signal(signal.SIGABRT)
        self.send_signal(signal.SIGCONT)  # if it was stopped
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DUMP_S)
        for pid in find_session(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def find_remains(self, *, files: bool) -> list[str]:
        """Returns what is left after the end: processes of the session, and temporary `files`; removes both."""
        end = time.monotonic() + DESCENDANTS_S
        while (left := find_session(self.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remains = [f"process {pid} outlived its program by {DESCENDANTS_S:g} s" for pid in left]
        if files:
            names = sorted(entry.name for entry in self._temporary.iterdir())
            remains += [f"temporary file {name}" for name in names if not name.startswith(LASTING_FILES)]
        shutil.rmtree(self._temporary, ignore_errors=True)
        return remains

    def read_last_lines(self) -> str:
        """Returns the end of the log in one line."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines if line.strip(" ^~"))[-300:]

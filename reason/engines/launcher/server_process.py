"""One server as a child process: start, health, log and end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO

from reason.engines.launcher.server_command import LaunchCommand

_NO_PORT = "error while attempting to bind on address"  # uvicorn's
_COPY_S = 2.0  # for the last lines of a process that has ended
_HEALTH_TIMEOUT_S = 5.0  # a healthy SGLang needs more than 1 s: it generates a token and checks a second later


@dataclass
class ServerProcess:
    """A server and all processes that it starts, as one process group. Its output is appended to `log`.

    label  put before every line of its output, in a log that several servers share; None puts nothing
    """

    launch: LaunchCommand
    log: Path
    label: str | None = None
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _copier: Thread | None = field(init=False, default=None)
    _log_begin: int = field(init=False, default=0)

    def start(self) -> None:
        """Starts the server, or starts it again at the same address; returns before it is up."""
        # A start without compiled Python files takes twice as long.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment: Mapping[str, str] = inherited | self.launch.environment
        with self.log.open("ab") as log:
            self._log_begin = log.tell()
            # Its own session: Ctrl-C in the terminal reaches this process only, which then stops the servers in order.
            self._process = subprocess.Popen(
                self.launch.command,
                env=environment,
                stdout=log if self.label is None else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self.label is not None:
            self._copier = Thread(target=self._copy_output, args=(self._process.stdout,), daemon=True)
            self._copier.start()

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while it runs."""
        assert self._process is not None, "it was not started"
        return self._process.poll()

    def is_healthy(self) -> bool:
        """Returns whether its health address replies with success."""
        from reason.engines.http.blocking import fetch_blocking
        from reason.engines.http.errors import TransientError

        try:
            return fetch_blocking("GET", self.launch.health_url, "", total_s=_HEALTH_TIMEOUT_S).is_success
        except TransientError:
            return False

    def find_failure(self) -> str | None:
        """Returns why it cannot be up any more, in words that follow its name; None while it can."""
        if self.exit_status is not None:
            return f"ended with {self.exit_status}"
        # SGLang loads its model first, and then goes on without its port, for ever
        return "has no port: another program has taken it" if _NO_PORT in self._read_own_log(self._log_begin) else None

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Returns once it is up. Raises: RuntimeError with the end of its log after the timeout or where it fails."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and self.find_failure() is None:
            if self.is_healthy():
                return
            time.sleep(0.5)
        status = self.find_failure() or "does not answer"
        raise RuntimeError(f"the server at {self.launch.url} {status}; its log ends:\n{self.read_log_end()}")

    def read_log_end(self, max_characters: int = 4000) -> str:
        """Returns the end of its log; of one that it shares, its own lines without the label."""
        if self._copier is not None:
            self._copier.join(_COPY_S)  # a server that has just ended may have said why
        return self._read_own_log(0)[-max_characters:]

    def pause(self) -> None:
        """Stops its processes from running, until `resume`."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets its processes run again."""
        self._signal_group(signal.SIGCONT)

    def request_exit(self) -> None:
        """Asks it to exit and returns before it has. Calling it twice is harmless."""
        if self._process is not None:
            self._signal_group(signal.SIGCONT)  # a paused process would not receive the next signal
            self._signal_group(signal.SIGTERM)

    def request_drain(self) -> None:
        """Asks its first process alone to exit: SGLang's then ends running requests before the rest of its processes.

        Returns at once. Calling it twice is harmless.
        """
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self, grace_s: float = 10.0) -> None:
        """Asks it to exit, and kills it after `grace_s`. Calling it twice is harmless."""
        if self._process is not None:
            self.request_exit()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            self.kill()

    def kill(self) -> None:
        """Ends all of its processes at once. Calling it twice is harmless."""
        if self._process is not None:
            self._signal_group(signal.SIGKILL)
            self._process.wait()
            if self._copier is not None:
                self._copier.join(_COPY_S)
            self._process = None  # the system may give its id to another process

    def _read_own_log(self, begin: int) -> str:
        """Returns its output in the log from byte `begin` on, without the label."""
        with self.log.open("rb") as log:
            log.seek(begin)
            text = log.read().decode(errors="replace")
        if self.label is None:
            return text
        mark = f"{self.label} | "
        return "".join(line.removeprefix(mark) for line in text.splitlines(keepends=True) if line.startswith(mark))

    def _copy_output(self, output: IO[bytes]) -> None:
        """Appends the lines of `output` to the log, each with the label, until the last process has closed it."""
        mark = f"{self.label} | ".encode()
        with self.log.open("ab", buffering=0) as log, output:
            for line in output:
                log.write(mark + line if line.endswith(b"\n") else mark + line + b"\n")  # one write: none is split

    def _signal_group(self, number: int) -> None:
        assert self._process is not None, "it was not started"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

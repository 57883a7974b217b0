"""A server as a process of ours: its start, whether it answers, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import httpx2

_ANSWER_S = 5.0  # a healthy SGLang takes more than one: it generates a token and looks a second later


class Startable(Protocol):
    """What is started: a `Launch`, or a `RouterLaunch`."""

    @property
    def url(self) -> str: ...
    @property
    def health(self) -> str: ...
    @property
    def command(self) -> list[str]: ...
    @property
    def environment(self) -> dict[str, str]: ...


@dataclass
class ServerProcess:
    """A server and all processes it starts, a group of their own. Its output goes to `log`."""

    launch: Startable
    log: Path
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def start(self) -> None:
        """Starts it, or starts it again at the same address; returns before it is up."""
        # Without compiled files a start takes twice as long.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment: Mapping[str, str] = inherited | self.launch.environment
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.launch.command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def ended(self) -> int | None:
        """Its exit status; None while it runs."""
        assert self._process is not None, "it was not started"
        return self._process.poll()

    def answers(self, http: httpx2.Client) -> bool:
        """Whether it is up."""
        import httpx2

        try:
            return bool(http.get(self.launch.health, timeout=_ANSWER_S).is_success)
        except httpx2.TransportError:
            return False

    def wait(self, patience_s: float) -> None:
        """Returns once it answers. Raises: RuntimeError with the end of its log if it does not."""
        import httpx2

        until = time.monotonic() + patience_s
        with httpx2.Client() as http:
            while time.monotonic() < until and self.ended is None:
                if self.answers(http):
                    return
                time.sleep(0.5)
        status = "does not answer" if self.ended is None else f"ended with {self.ended}"
        raise RuntimeError(f"the server at {self.launch.url} {status}; its log ends:\n{self.last_words()}")

    def last_words(self, characters: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:]

    def pause(self) -> None:
        """Takes the processor away from it."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Gives it back."""
        self._signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Returns before it has. Calling it twice is harmless."""
        if self._process is not None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)

    def stop(self, grace_s: float = 10.0) -> None:
        """Asks it to end, then makes all of it end. Calling it twice is harmless."""
        if self._process is not None:
            self.ask_to_end()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            self.kill()

    def kill(self) -> None:
        """Ends all of its processes at once. Calling it twice is harmless."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None  # its number may soon be another's

    def _signal(self, number: int) -> None:
        assert self._process is not None, "it was not started"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

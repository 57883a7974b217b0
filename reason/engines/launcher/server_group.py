"""A group of server processes that start together; one that dies is started again, then all stop with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from reason.engines.launcher.server_command import LaunchCommand
from reason.engines.launcher.server_process import ServerProcess

_POLL_S = 0.5
_REMINDER_S = 20.0
_DRAIN_NOTE_S = 1.0


class ServerExited(RuntimeError):
    """A server ended by itself, or was not up in time; the message has the end of its log."""


class ServerGroup:
    """One process for each command, with one log, `folder/servers.log`. Leaving the context stops all of them.

    timeout_s    how long a server may take until it is up
    restarts     how often each server that was up and dies is started again
    should_stop  polled several times a second, so that a signal handler need only set a flag
    report       called with a line for every server that is up, and now and then for those that are not
    """

    def __init__(
        self,
        commands: Mapping[str, LaunchCommand],
        folder: Path,
        *,
        timeout_s: float,
        restarts: int,
        should_stop: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self.log = folder / "servers.log"
        self._servers = {name: ServerProcess(command, self.log, label=name) for name, command in commands.items()}
        self._timeout_s, self._should_stop, self._report = timeout_s, should_stop, report
        self._restarts_left = dict.fromkeys(commands, restarts)
        self._loading: dict[str, float] = {}  # when each that is not up was started

    def __enter__(self) -> ServerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start_all(self) -> bool:
        """Starts all servers; returns False where `should_stop` came before they were up. Raises: ServerExited."""
        for name, server in self._servers.items():
            server.start()
            self._loading[name] = time.monotonic()
        reported_at = time.monotonic()
        while self._loading and not self._should_stop():
            self._watch()
            if self._loading and time.monotonic() - reported_at > _REMINDER_S:
                reported_at = time.monotonic()
                waited = reported_at - min(self._loading.values())
                self._report(f"still loading after {waited:.0f} s: {', '.join(self._loading)}")
            time.sleep(_POLL_S)
        return not self._loading

    def wait_until_stopped(self) -> None:
        """Returns when `should_stop` is true. Raises: ServerExited if a server ends that is not started again."""
        while not self._should_stop():
            self._watch()
            time.sleep(_POLL_S)

    def drain_all(self, timeout_s: float, *, should_hurry: Callable[[], bool]) -> None:
        """Asks all servers to end after their running requests; returns when they have, or at the limit."""
        for server in self._servers.values():
            server.request_drain()
        until, noted = time.monotonic() + timeout_s, time.monotonic() + _DRAIN_NOTE_S
        while time.monotonic() < until and not should_hurry():
            running = [name for name, server in self._servers.items() if server.exit_status is None]
            if not running:
                return
            if time.monotonic() > noted:
                noted = until
                self._report(f"waiting up to {timeout_s:g} s for requests at {', '.join(running)}")
            time.sleep(_POLL_S)

    def stop_all(self) -> None:
        """Asks all servers to exit, then kills those that have not. Calling it twice is harmless."""
        for server in self._servers.values():
            server.request_exit()
        for server in self._servers.values():
            server.stop()

    def _watch(self) -> None:
        """Looks at all servers once, and starts again what may be. Raises: ServerExited."""
        for name, server in self._servers.items():
            if server.exit_status is not None:
                self._restart(name, server)
        for name, started_at in list(self._loading.items()):
            server, waited = self._servers[name], time.monotonic() - started_at
            if server.is_healthy():
                del self._loading[name]
                self._report(f"{name} is up at {server.launch.url} after {waited:.0f} s")
            elif (failure := server.find_failure()) is not None:
                raise ServerExited(f"{name} {failure}; {_describe_log_end(server)}")
            elif waited > self._timeout_s:
                raise ServerExited(f"{name} does not answer after {self._timeout_s:g} s; {_describe_log_end(server)}")

    def _restart(self, name: str, server: ServerProcess) -> None:
        """Starts a server again that has ended. Raises: ServerExited where it was never up, or has no restart left."""
        problem = f"{name} ended with {server.exit_status}"
        if name in self._loading or not self._restarts_left[name]:
            raise ServerExited(f"{problem}; {_describe_log_end(server)}")
        self._restarts_left[name] -= 1
        self._report(f"{problem} and is started again ({self._restarts_left[name]} restarts left)")
        server.kill()  # what it has started may live on, and hold its GPU
        server.start()
        self._loading[name] = time.monotonic()


def _describe_log_end(server: ServerProcess) -> str:
    return f"its log ({server.log}) ends:\n{server.read_log_end()}"

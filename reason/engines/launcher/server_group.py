"""A group of server processes that start together, and stop together when one of them ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from reason.engines.launcher.server_command import LaunchCommand
from reason.engines.launcher.server_process import ServerProcess

_POLL_S = 0.5
_REMINDER_S = 20.0


class ServerExited(RuntimeError):
    """A server ended by itself, or was not up in time; the message has the end of its log."""


class ServerGroup:
    """One process for each command; its log is `folder/NAME.log`. Leaving the context stops all of them.

    should_stop  polled several times a second, so that a signal handler need only set a flag
    report       called with a line for every server that is up, and now and then for those that are not
    """

    def __init__(
        self,
        commands: Mapping[str, LaunchCommand],
        folder: Path,
        *,
        should_stop: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self._servers = {name: ServerProcess(command, folder / f"{name}.log") for name, command in commands.items()}
        self._should_stop, self._report = should_stop, report

    def __enter__(self) -> ServerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start_all(self, timeout_s: float) -> bool:
        """Starts all servers; returns False where `should_stop` came before they were up. Raises: ServerExited."""
        started_at = reported_at = time.monotonic()
        for server in self._servers.values():
            server.start()
        loading = dict(self._servers)
        while loading and not self._should_stop():
            self._require_running()
            waited = time.monotonic() - started_at
            for name in [name for name, server in loading.items() if server.is_healthy()]:
                self._report(f"{name} is up at {loading.pop(name).launch.url} after {waited:.0f} s")
            if loading and waited > timeout_s:
                name, server = next(iter(loading.items()))
                raise ServerExited(f"{name} does not answer after {timeout_s:g} s; {_describe_log_end(server)}")
            if loading and started_at + waited - reported_at > _REMINDER_S:
                reported_at = started_at + waited
                self._report(f"still loading after {waited:.0f} s: {', '.join(loading)}")
            time.sleep(_POLL_S)
        return not loading

    def wait_until_stopped(self) -> None:
        """Returns when `should_stop` is true. Raises: ServerExited if a server ends before."""
        while not self._should_stop():
            self._require_running()
            time.sleep(_POLL_S)

    def stop_all(self) -> None:
        """Asks all servers to exit, then kills those that have not. Calling it twice is harmless."""
        for server in self._servers.values():
            server.request_exit()
        for server in self._servers.values():
            server.stop()

    def _require_running(self) -> None:
        for name, server in self._servers.items():
            if server.exit_status is not None:
                raise ServerExited(f"{name} ended with {server.exit_status}; {_describe_log_end(server)}")


def _describe_log_end(server: ServerProcess) -> str:
    return f"its log ({server.log}) ends:\n{server.read_log_end()}"

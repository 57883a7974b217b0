"""Servers that live and die together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from reason.engines.launcher.server_process import ServerProcess, Startable

_LOOK_S = 0.5
_REMIND_S = 20.0


class ServerEnded(RuntimeError):
    """A server ended by itself, or never came up; the message has the end of its log."""


class Processes:
    """A process for each launch, its log in `folder` under its name. Leaving the context stops all of them.

    told   whether to stop; asked several times a second, so that a signal's handler need only take note of it
    say    hears of every server that is up, and from time to time of those that are not
    """

    def __init__(
        self,
        launches: Mapping[str, Startable],
        folder: Path,
        *,
        told: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._servers = {name: ServerProcess(launch, folder / f"{name}.log") for name, launch in launches.items()}
        self._told, self._say = told, say

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, patience_s: float) -> bool:
        """Starts all; whether they are up, or False where it was told to stop before. Raises: ServerEnded."""
        import httpx2

        began = reminded = time.monotonic()
        for server in self._servers.values():
            server.start()
        loading = dict(self._servers)
        with httpx2.Client() as http:
            while loading and not self._told():
                self._check()
                waited = time.monotonic() - began
                for name in [name for name, server in loading.items() if server.answers(http)]:
                    self._say(f"{name} is up at {loading.pop(name).launch.url} after {waited:.0f} s")
                if loading and waited > patience_s:
                    name, server = next(iter(loading.items()))
                    raise ServerEnded(f"{name} does not answer after {patience_s:g} s; {_end(server)}")
                if loading and began + waited - reminded > _REMIND_S:
                    reminded = began + waited
                    self._say(f"still loading after {waited:.0f} s: {', '.join(loading)}")
                time.sleep(_LOOK_S)
        return not loading

    def watch(self) -> None:
        """Returns when told to stop. Raises: ServerEnded if one ends before."""
        while not self._told():
            self._check()
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """Asks all to end, then makes them. Calling it twice is harmless."""
        for server in self._servers.values():
            server.ask_to_end()
        for server in self._servers.values():
            server.stop()

    def _check(self) -> None:
        for name, server in self._servers.items():
            if server.ended is not None:
                raise ServerEnded(f"{name} ended with {server.ended}; {_end(server)}")


def _end(server: ServerProcess) -> str:
    return f"its log ({server.log}) ends:\n{server.last_words()}"

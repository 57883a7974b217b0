"""What can go wrong with a request to a server, told apart by what helps against it."""

from __future__ import annotations


class Passing(Exception):
    """It may go well the next time. `after_s`: how long the server wants to be left alone, if it says so."""

    def __init__(self, said: str, after_s: float | None = None) -> None:
        super().__init__(said)
        self.after_s = after_s


class Busy(Passing):
    """The server lives and its queue is full: wait."""


class Unreachable(Passing):
    """Nothing was sent, or nothing was begun: ask another server, or wait for one."""


class Lost(Passing):
    """The request was sent and its answer never came whole: ask another server. The request may be to blame."""


class Refused(ValueError):
    """The server says the request is wrong; asking again would not help."""


class NoServer(RuntimeError):
    """No server answered for as long as one was willing to wait, or a request lost every server it was given to."""

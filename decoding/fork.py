"""Refuses, in a forked process, what runs in threads of its parent.

A fork copies all memory but only the thread that forks. In the copy no worker thread answers, and a lock that another
thread held stays locked: waiting for either would never end.
"""

from __future__ import annotations

import os


class ForkGuard:
    """Tells the process whose threads an object uses from forks of it.

    The process is the one of the first `claim_process`: an object that has started no thread may be used in a fork.
    """

    def __init__(self) -> None:
        self._pid: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one with the threads."""
        return self._pid is not None and self._pid != os.getpid()

    def claim_process(self) -> None:
        """Makes this process the one with the threads, unless one is. Called before the first lock is taken.

        *Mutates*. Raises: RuntimeError in a fork of that process.
        """
        if self.is_forked:
            raise RuntimeError(
                f"this solver or engine runs in threads of process {self._pid}, and this is process {os.getpid()}, "
                "a fork of it: threads do not survive a fork. Open a solver here, or start the process with "
                "multiprocessing's 'spawn' method"
            )
        self._pid = os.getpid()

"""What a process holds, read from /proc, and whether that grows from round to round."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")
WARM_UP_ROUNDS = 2
SLACK = {"descriptors": 8.0, "threads": 4.0, "children": 1.0, "memory_mib": 300.0}
"""What a gauge may be above its maximum of the first rounds; a leak per search or request is soon above it."""


@dataclass(frozen=True)
class ProcessGauges:
    """What a process holds: open files and sockets, threads, child processes (zombies too), resident memory."""

    descriptors: int
    threads: int
    children: int
    memory_mib: float


@dataclass(frozen=True)
class ProcessStatus:
    """A process in the table of the system."""

    pid: int
    state: str
    parent: int
    session: int


def read_gauges(pid: int) -> ProcessGauges:
    """Returns the gauges of a running process. Raises: OSError if there is none."""
    resident_pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    return ProcessGauges(
        descriptors=len(os.listdir(PROC / str(pid) / "fd")),
        threads=len(os.listdir(PROC / str(pid) / "task")),
        children=sum(status.parent == pid for status in list_processes()),
        memory_mib=resident_pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    )


def list_processes() -> Iterator[ProcessStatus]:
    """Yields every process of the system."""
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # the name before the last bracket may hold anything
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        yield ProcessStatus(int(entry.name), state, int(parent), int(session))


def find_session(session: int) -> list[int]:
    """Returns the running processes of a session, without zombies."""
    return [status.pid for status in list_processes() if status.session == session and status.state != "Z"]


class GrowthWatch:
    """Compares the gauges of a process after each round with those of the first rounds.

    >>> watch = GrowthWatch()
    >>> for threads in (5, 6, 30):
    ...     assert not watch.find_growth(ProcessGauges(10, threads, 0, 100.0))
    >>> watch.find_growth(ProcessGauges(10, 31, 0, 100.0))
    ['threads grew from 6 to 31']
    """

    def __init__(self) -> None:
        self._readings: list[dict[str, float]] = []

    def find_growth(self, gauges: ProcessGauges) -> list[str]:
        """Returns the gauges that were too high after this round and the one before. *Mutates* the watch."""
        self._readings.append(asdict(gauges))
        if len(self._readings) < WARM_UP_ROUNDS + 2:
            return []
        first, last = self._readings[:WARM_UP_ROUNDS], self._readings[-2:]
        highest = {name: max(reading[name] for reading in first) for name in SLACK}
        return [
            f"{name} grew from {highest[name]:.0f} to {last[-1][name]:.0f}"
            for name, slack in SLACK.items()
            if all(reading[name] > highest[name] + slack for reading in last)
        ]

"""Times the parts of a round: the host's by its clock, and what runs on a GPU by events, which wait for nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch

from decoding.stats import Activity, EngineStats


class _DeviceSpan(NamedTuple):
    """Work between two events of a stream."""

    activity: Activity
    begin: torch.cuda.Event
    end: torch.cuda.Event


class RoundClock:
    """Adds the seconds of rounds to `stats`.

    On CUDA a launch returns before its work begins, so the host's clock would count the work where the host waits. Two
    events on the stream measure it. The next round reads them, when the device has begun with it and waits for nothing.
    """

    def __init__(self, stats: EngineStats, device: torch.device) -> None:
        self._stats, self._has_events = stats, device.type == "cuda"
        self._spans: deque[_DeviceSpan] = deque()

    def measure_host(self, activity: Activity) -> AbstractContextManager[None]:
        """Adds the time of the `with` block to `activity`, unless it raises."""
        return self._stats.measure_seconds(activity)

    def measure_device(self, activity: Activity) -> AbstractContextManager[None]:
        """As `measure_host`, of what the block launches: from when the device reaches it to when it has left it."""
        return self._record_span(activity) if self._has_events else self.measure_host(activity)

    def add_all(self) -> None:
        """Waits for the device, and adds the time of all its work."""
        if self._spans:
            self._spans[-1].end.synchronize()
        self.add_passed()

    def add_passed(self) -> None:
        """Adds the time of the work that the device has done."""
        while self._spans and self._spans[0].end.query():  # type: ignore[no-untyped-call]
            activity, begin, end = self._spans.popleft()
            self._stats.add_seconds(activity, begin.elapsed_time(end) / 1e3)

    @contextmanager
    def _record_span(self, activity: Activity) -> Iterator[None]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self._spans.append(_DeviceSpan(activity, begin, end))

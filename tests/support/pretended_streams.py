"""CUDA streams and events that are pretended on a CPU: a record of what was launched where, and a clock that counts it.

Each operation on the pretended device takes `OPERATION_MS` of its stream. Events have that time, and are passed when
the host has waited for anything since. So a test sees the times that a real device would give, to the last operation.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

OPERATION_MS = 1.0


@dataclass(eq=False)
class PretendedStream:
    """`torch.cuda.Stream`; `clock_ms` is what its operations took."""

    streams: PretendedStreams
    name: str
    device: torch.device = field(default_factory=lambda: torch.device("cuda:0"))
    clock_ms: float = 0.0

    def wait_stream(self, other: PretendedStream) -> None:
        self.streams.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.streams.log.append(f"host waits for {self.name}")
        self.streams.waits += 1


@dataclass(eq=False)
class PretendedEvent:
    """`torch.cuda.Event`."""

    streams: PretendedStreams
    at_ms: float = -1.0
    waits: int = -1

    def record(self) -> None:
        self.at_ms, self.waits = self.streams.current.clock_ms, self.streams.waits

    def query(self) -> bool:
        return self.streams.waits > self.waits

    def synchronize(self) -> None:
        self.streams.waits += 1

    def elapsed_time(self, end: PretendedEvent) -> float:
        assert self.query(), "the device may not have passed the first event"
        assert end.query(), "the device may not have passed the second event"
        return end.at_ms - self.at_ms


class PretendedStreams:
    """All streams of the pretended device.

    log          what was done with streams and devices, in order
    launches     operations by stream
    of_threads   operations by thread and stream
    waits        how often the host waited for the device
    num_streams  streams that were made
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.launches: Counter[str] = Counter()
        self.of_threads: Counter[tuple[str, str]] = Counter()
        self.waits = 0
        self.default = PretendedStream(self, "default")
        self.num_streams = 0
        self._local = threading.local()

    @property
    def current(self) -> PretendedStream:
        """The current stream of this thread."""
        stream: PretendedStream = getattr(self._local, "stream", self.default)
        return stream

    def count_launch(self) -> None:
        """Counts an operation of the device in this thread."""
        self.current.clock_ms += OPERATION_MS
        self.launches[self.current.name] += 1
        self.of_threads[threading.current_thread().name, self.current.name] += 1

    def _make_types(self) -> tuple[type[PretendedStream], type[PretendedEvent]]:
        """Returns what makes new streams and events: classes, because libraries name `torch.cuda.Stream` in types."""
        streams = self

        class Stream(PretendedStream):
            def __init__(self, device: object = None) -> None:
                streams.num_streams += 1
                super().__init__(streams, f"stream {streams.num_streams}")

        class Event(PretendedEvent):
            def __init__(self, *, enable_timing: bool = False) -> None:
                assert enable_timing, "its time is read"
                super().__init__(streams)

        return Stream, Event

    @contextmanager
    def use_stream(self, stream: PretendedStream) -> Iterator[None]:
        """`torch.cuda.stream`."""
        before, self._local.stream = self.current, stream
        self.log.append(f"on {stream.name}")
        try:
            yield
        finally:
            self._local.stream = before
            self.log.append(f"off {stream.name}")

    @contextmanager
    def use_device(self, device: torch.device) -> Iterator[None]:
        """`torch.cuda.device`."""
        assert device.index is not None
        self.log.append(f"on {device}")
        yield

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replaces the functions of `torch.cuda`. *Mutates* the module."""
        for name, pretended in zip(("Stream", "Event"), self._make_types(), strict=True):
            monkeypatch.setattr(torch.cuda, name, pretended)
        monkeypatch.setattr(torch.cuda, "stream", self.use_stream)
        monkeypatch.setattr(torch.cuda, "device", self.use_device)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device=None: self.default)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)

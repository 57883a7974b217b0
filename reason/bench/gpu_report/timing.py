"""Times calls on a device without the time of launching them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

Call = Callable[[], object]


def time_calls(calls: Sequence[Call], device: torch.device, *, repeats: int = 5, passes: int = 8) -> float:
    """Returns the seconds of one call: the median over `repeats` of the mean over `passes` rounds of all calls.

    Calls that read different memory keep each other out of the caches. On CUDA they are captured into one graph and
    replayed, so launches take no time; a call must then neither wait nor copy to the host. Several passes make the
    time of starting the graph small beside that of its kernels.
    """
    if device.type == "cuda":
        return _time_graph(calls, repeats, passes) / (passes * len(calls))
    for call in calls:
        call()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(passes):
            for call in calls:
                call()
        seconds.append(time.perf_counter() - begin)
    return median(seconds) / (passes * len(calls))


def _time_graph(calls: Sequence[Call], repeats: int, passes: int) -> float:
    # capturing needs workspaces that exist: so every call runs once before, on a stream of its own
    cuda: Any = torch.cuda  # has few types
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for call in calls:
            call()
    cuda.current_stream().wait_stream(stream)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for _ in range(passes):
            for call in calls:
                call()
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    graph.replay()
    seconds: list[float] = []
    for _ in range(repeats):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(1e-3 * begin.elapsed_time(end))
    return median(seconds)


def time_launches(calls: Sequence[Call], device: torch.device, *, repeats: int = 5) -> float:
    """Returns the seconds of one call from the first launch to the end of the last, launches and waits included."""
    for call in calls:
        call()
    synchronize(device)
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for call in calls:
            call()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return median(seconds) / len(calls)


def synchronize(device: torch.device) -> None:
    """Waits for all work on a CUDA device; elsewhere there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

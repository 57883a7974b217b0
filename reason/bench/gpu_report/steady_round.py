"""Part a5: how often a steady round waits for the device, what it launches, and how long the device is idle."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from reason.bench.gpu_report.rig import ReportRig, make_random_body
from reason.bench.gpu_report.steady import SteadyRounds, open_rounds
from reason.bench.gpu_report.timing import synchronize
from reason.bench.host_round import PhaseClock, measure_methods
from reason.bench.puppet import find_shape
from reason.bench.round_cases import REASONING_SAMPLING
from reason.bench.round_contexts import SearchContexts

_WARM_UP = 3
_BESIDE_DEVICE = {"sampling"}
"""The phase that is launched behind the forward pass, and waits for the device."""


@dataclass(frozen=True)
class DeviceWork:
    """What a device did in one round: kernels, copies by direction, and the seconds in which it was busy.

    launches  calls of the host that start kernels or graphs of them, by name
    """

    kernels: int
    launches: dict[str, int]
    copies: dict[str, int]
    busy_seconds: float
    longest: list[tuple[str, float]]


def inspect_round(rig: ReportRig) -> None:
    """Adds waits, kernels and idle time of rounds of a 7B, plain and with drafts."""
    name = rig.pick("qwen2.5-7b", "miniature")
    backend, shape = make_random_body(rig, name), find_shape(name)
    for branches in rig.pick((1, 16, 64), (2,)):
        for nodes in rig.pick((0, 4), (0, 2)):
            source = rig.pick(
                SearchContexts(branches), SearchContexts(branches, 1, 2, prompt=(3, 9), written=(3, 9), step=(1, 9))
            )
            rounds = open_rounds(backend, shape, source, nodes, REASONING_SAMPLING)
            _inspect(rig, f"{name}, {branches} branches x {nodes} nodes", rounds)
            rounds.runner.release_pool()


def _inspect(rig: ReportRig, title: str, rounds: SteadyRounds) -> None:
    for _ in range(rig.pick(_WARM_UP, 0)):
        rounds.run_round()
    synchronize(rig.device)
    seconds = median(_time_round(rounds) for _ in range(rig.pick(10, 1)))
    if rig.device.type == "cuda":
        waits = list_waits(rounds.run_round)
        rig.add_check(
            f"waits of a round, {title}", f"{len(waits)}", len(waits) == 1, "exactly 1", where=dict(Counter(waits))
        )
    else:
        rig.add_skipped(f"waits of a round, {title}", "a CPU has no waits to count")
    work = profile_round(rounds.run_round, rig.device)
    if not work.kernels:
        rig.add_skipped(f"work of a round, {title}", "the profiler saw no kernel; it may lack the right to")
        return
    _add_host_times(rig, title, rounds)
    idle = 1 - work.busy_seconds / seconds
    rig.add_figure(
        f"work of a round, {title}",
        f"{work.kernels} kernels, launches {work.launches or 'none'}, copies {work.copies or 'none'}, "
        f"busy {1e3 * work.busy_seconds:.2f} of {1e3 * seconds:.2f} ms: idle {max(0.0, idle):.0%}",
        kernels=work.kernels,
        idle_share=idle,
        longest=work.longest,
    )


def _add_host_times(rig: ReportRig, title: str, rounds: SteadyRounds) -> None:
    """Adds what the host does while the device has nothing to do: until its launch, and after the results are there.

    *Mutates*: the rounds are measured from then on.
    """
    clock = PhaseClock()
    measure_methods(rounds.runner, clock)
    times: list[dict[str, float]] = []
    for _ in range(rig.pick(20, 1)):
        clock.seconds.clear()
        with clock.measure_phase("scheduling and launching"):
            rounds.run_round()
        times.append(dict(clock.seconds))
    medians = {phase: 1e3 * median(one[phase] for one in times) for phase in times[0] if phase not in _BESIDE_DEVICE}
    parts = ", ".join(f"{phase} {ms:.2f}" for phase, ms in medians.items())
    rig.add_figure(f"host in a real round, {title}", f"{sum(medians.values()):.2f} ms ({parts})", **medians)


def _time_round(rounds: SteadyRounds) -> float:
    begin = time.perf_counter()
    rounds.run_round()
    return time.perf_counter() - begin


def list_waits(call: Callable[[], None]) -> list[str]:
    """Returns the places in which a call made the host wait for the CUDA device, as `file:line`."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]


def profile_round(call: Callable[[], None], device: torch.device) -> DeviceWork:
    """Returns the work of a device in a call; on a CPU operators count as kernels, outer and inner ones."""
    is_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]) as recorded:
        call()
        synchronize(device)
    kind = "CUDA" if is_cuda else "CPU"
    everything = recorded.events() or ()
    events = [event for event in everything if event.device_type.name == kind]
    # of the driver and its library: cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch
    launches = Counter(event.name for event in everything if event.name.startswith("cu") and "Launch" in event.name)
    copies = Counter(event.name for event in events if event.name.startswith(("Memcpy", "Memset")))
    seconds: Counter[str] = Counter()
    for event in events:
        seconds[event.name] += event.time_range.elapsed_us()
    longest = [(name[:80], float(us)) for name, us in seconds.most_common(12)]
    # one stream, so no two of them overlap
    busy = 1e-6 * sum(seconds.values())
    return DeviceWork(len(events) - sum(copies.values()), dict(launches), dict(copies), busy, longest)

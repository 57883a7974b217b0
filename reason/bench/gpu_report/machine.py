"""Part a0: versions, the card and its clocks, and whether the two compilers work here."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version

from reason.bench.gpu_report.rig import ReportRig

_PACKAGES = ("torch", "triton", "transformers", "numpy", "numba", "scipy")
_CLOCKS = "clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,driver_version"


def describe_machine(rig: ReportRig) -> None:
    """Adds versions, card and clocks; compiles with numba and with Triton."""
    rig.add_figure("python", f"{platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    rig.add_figure("packages", ", ".join(f"{name} {_find_version(name)}" for name in _PACKAGES))
    _describe_card(rig)
    _compile_with_numba(rig)
    _compile_with_triton(rig)


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _describe_card(rig: ReportRig) -> None:
    import torch

    from reason.bench.gpu_report.timing import time_launches

    if rig.device.type == "cuda":
        card = torch.cuda.get_device_properties(rig.device)
        free, total = torch.cuda.mem_get_info()
        rig.add_figure(
            "card",
            f"{card.name}, {card.multi_processor_count} multiprocessors, {free / 2**30:.1f} of {total / 2**30:.1f} GiB "
            f"free, CUDA {torch.version.cuda}, capability {card.major}.{card.minor}",
        )
    if (program := shutil.which("nvidia-smi")) is not None:
        command = [program, f"--query-gpu={_CLOCKS}", "--format=csv"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        rig.add_figure("clocks", "; ".join(result.stdout.split("\n")[:2]) or result.stderr.strip())
    x = torch.zeros(1, device=rig.device)
    seconds = time_launches([lambda: x.add_(1)] * rig.pick(2000, 20), rig.device)
    rig.add_figure("one small operator, launches back to back", f"{1e6 * seconds:.1f} us")


def _compile_with_numba(rig: ReportRig) -> None:
    """Adds whether numba compiles a loop. Where it does not, the parts that draft tokens fail."""
    bar = "it compiles; else no token is drafted"
    begin = time.monotonic()
    try:
        import numba
        import numpy as np

        compiled = numba.njit(_sum_numbers)
        total = compiled(np.arange(5))
    except (ImportError, SystemError, RuntimeError, AttributeError, TypeError) as error:
        rig.add_check("numba", f"{type(error).__name__}: {error}", False, bar)
        return
    rig.add_check("numba", f"compiles a loop in {time.monotonic() - begin:.1f} s", total == 10, bar)


def _sum_numbers(numbers):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # numba infers the types
    total = 0
    for number in numbers:
        total += number
    return total


def _compile_with_triton(rig: ReportRig) -> None:
    import torch

    from decoding.core import SamplingParams
    from decoding.gpu_sampler import sample_on_gpu
    from decoding.sampling_batch import SamplingBatch

    logits = torch.zeros((1, 300), device=rig.device)
    logits[0, 7] = 100.0
    begin = time.monotonic()
    tokens, _ = sample_on_gpu(logits, SamplingBatch.from_params([SamplingParams()], [0], [0]))
    token = int(tokens[0])
    how = rig.pick("compiles", "interprets")
    rig.add_check("triton", f"{how} and runs two kernels in {time.monotonic() - begin:.1f} s", token == 7, "token 7")

"""What every part of the report gets: the device, its sizes, the time that is left, and a place for its lines."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from reason.bench.gpu_report.lines import ReportLine, Status

if TYPE_CHECKING:
    # for annotations only: the process that starts the parts must not import torch
    import torch

    from decoding.model.transformers_checkpoint import HFBackend
    from reason.bench.cards import Card

T = TypeVar("T")
NO_TIME = "no time was left"
"""The value of a line for what was skipped to keep to the time."""


@dataclass(frozen=True)
class RigSettings:
    """What the command line chooses.

    rehearses   every part runs on the CPU, at a tiny size, with kernels in Triton's interpreter
    recordings  file of recorded solutions, if there is one
    root        folder of the repository
    """

    rehearses: bool
    recordings: Path | None
    root: Path


@dataclass(frozen=True)
class ReportRig:
    """The place where one part runs. `deadline` is of `time.monotonic()`: a part leaves out what does not fit."""

    part: str
    settings: RigSettings
    deadline: float
    emit_line: Callable[[ReportLine], None]

    @property
    def rehearses(self) -> bool:
        return self.settings.rehearses

    @property
    def device(self) -> torch.device:
        """The GPU; the CPU where the report is rehearsed. Raises: RuntimeError without a GPU."""
        import torch

        if self.rehearses:
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device; --rehearse runs on the CPU")
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def dtype(self) -> torch.dtype:
        """That of the models; Triton's interpreter cannot multiply bfloat16."""
        import torch

        return torch.float32 if self.rehearses else torch.bfloat16

    def pick(self, real: T, tiny: T) -> T:
        """Returns the size for a GPU, or the tiny one."""
        return tiny if self.rehearses else real

    def has_seconds(self, seconds: float) -> bool:
        """Returns whether so much time is left."""
        return time.monotonic() + seconds < self.deadline

    def add_figure(self, name: str, value: str, **details: object) -> None:
        """Adds a line without a bar."""
        self.emit_line(ReportLine(self.part, name, value, details=details))

    def add_check(self, name: str, value: str, is_passed: bool, bar: str, **details: object) -> None:
        """Adds a line with a bar that every device must reach."""
        status: Status = "PASS" if is_passed else "FAIL"
        self.emit_line(ReportLine(self.part, name, value, status, bar, details))

    def add_skipped(self, name: str, reason: str) -> None:
        """Adds a line for what did not run."""
        self.emit_line(ReportLine(self.part, name, reason, "skipped"))

    def add_device_check(self, name: str, value: str, is_passed: bool, bar: str, **details: object) -> None:
        """Adds a line with a bar that only a GPU can reach; where the report is rehearsed, the line without it."""
        if self.rehearses:
            self.add_figure(name, value, **details)
        else:
            self.add_check(name, value, is_passed, bar, **details)


@cache
def measure_card(device: torch.device, num_bytes: int, matrix_size: int) -> Card:
    """Measures what the device reaches: bytes per second of a copy, and bfloat16 operations per second of a product."""
    import torch

    from reason.bench.cards import Card
    from reason.bench.gpu_report.timing import time_calls

    source = torch.rand(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    # a kernel: what a graph copies may be left to engines that are slower than the memory
    copy_s = time_calls([lambda: torch.neg(source, out=target)], device)
    a = torch.randn(matrix_size, matrix_size, device=device).bfloat16()
    b = torch.randn(matrix_size, matrix_size, device=device).bfloat16()
    product_s = time_calls([lambda: a @ b], device)
    return Card("measured", 2 * source.numel() * 4 / copy_s, 2 * matrix_size**3 / product_s)


def measure_ceilings(rig: ReportRig) -> Card:
    """Returns the measured ceilings of the rig's device."""
    return measure_card(rig.device, rig.pick(4 << 30, 1 << 20), rig.pick(8192, 64))


@cache
def _make_body(shape_name: str, device: torch.device, dtype: torch.dtype, decoder: str, attention: str) -> HFBackend:
    from decoding.model.transformers_checkpoint import HFBackend
    from reason.bench.puppet import find_shape

    model = find_shape(shape_name).make_model(device, dtype)
    return HFBackend(
        model,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        decoder=decoder,
        attention=attention,
        frees_model=True,
    )


def make_random_body(rig: ReportRig, shape_name: str, attention: str = "segments") -> HFBackend:
    """Returns a model of a shape with random weights, made on the device once for all parts of a process."""
    # on a CPU `auto` compiles the layers of a small model
    decoder = rig.pick("auto", "eager")
    return _make_body(rig.pick(shape_name, "miniature"), rig.device, rig.dtype, decoder, attention)


def free_models() -> None:
    """Forgets the models, and gives their memory back to the device."""
    _make_body.cache_clear()
    gc.collect()
    # a part that has not imported torch has no models
    if "torch" in sys.modules and (torch := sys.modules["torch"]).cuda.is_available():
        torch.cuda.empty_cache()

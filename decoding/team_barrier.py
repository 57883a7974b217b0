"""Lets threads that run the same compiled code wait for each other, without Python.

A round of a decoder waits some hundred times for a part of a layer: a lock of the system would take longer than the
part. So a thread that waits looks again and again, and after a while offers its core to others each time.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from decoding.compiled import compiled

_ARRIVED, _TIMES = 0, 8
"""Where a barrier has the number of threads that wait, and how often all have met: in different lines of a cache."""

_LOOKS = 2000
"""Looks of a waiting thread, some 50 us, before it offers its core to others."""

_LONG, _INT = ir.IntType(64), ir.IntType(32)
_OF_X86: tuple[str, list[ir.Constant]] = ("llvm.x86.sse2.pause", [])
_OF_ARM: tuple[str, list[ir.Constant]] = ("llvm.aarch64.hint", [ir.Constant(_INT, 1)])
_PAUSE = {"x86_64": _OF_X86, "AMD64": _OF_X86, "aarch64": _OF_ARM, "arm64": _OF_ARM}.get(platform.machine())
"""The instruction by which a core waits some cycles, and its arguments."""


def new_barrier() -> npt.NDArray[np.int64]:
    """Returns the state of a barrier; `wait_for_team` changes it."""
    return np.zeros(16, dtype=np.int64)


def _atomic(function: Callable[..., Any]) -> Any:
    """Makes a function that emits code callable from functions that Numba compiles."""
    return intrinsic(function)


def _element(context: Any, builder: ir.IRBuilder, array_type: Any, array: Any, index: Any) -> ir.Value:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index], source_etype=_LONG)


@_atomic
def _read_number(typing: Any, array: Any, index: Any) -> Any:
    """Returns `array[index]` as it is in memory now."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        return builder.load_atomic(
            _element(context, builder, sig.args[0], args[0], args[1]), "seq_cst", align=8, typ=_LONG
        )

    return types.int64(array, types.int64), emit


@_atomic
def _add_number(typing: Any, array: Any, index: Any, amount: Any) -> Any:
    """Adds `amount` to `array[index]`, whatever other threads do, and returns what was there."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        place = _element(context, builder, sig.args[0], args[0], args[1])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), emit


@_atomic
def _pause(typing: Any, offers_core: Any) -> Any:
    """Waits some cycles, or lets the system run another thread."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        if _PAUSE is not None:
            name, values = _PAUSE
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)  # type: ignore[no-untyped-call]
        if os.name == "posix":
            with builder.if_then(args[0]):
                kind = ir.FunctionType(_INT, [])
                builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.boolean), emit


@compiled
def wait_for_team(barrier: npt.NDArray[np.int64], num_threads: int) -> None:
    """Waits until `num_threads` threads are here; what each wrote before, all can read after. *Mutates* `barrier`."""
    if num_threads == 1:
        return
    times = _read_number(barrier, _TIMES)
    if _add_number(barrier, _ARRIVED, 1) == num_threads - 1:
        _add_number(barrier, _ARRIVED, -num_threads)
        _add_number(barrier, _TIMES, 1)
        return
    looks = 0
    while _read_number(barrier, _TIMES) == times:
        looks += 1
        _pause(looks > _LOOKS)

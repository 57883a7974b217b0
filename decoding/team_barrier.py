"""Lets threads that run the same compiled code wait for each other, and share out its parts, without Python.

A round of a decoder waits some hundred times for a part of a layer: a lock of the system would take longer than the
part. So a thread that waits looks again and again, and after a while offers its core to others each time.

Parts that need nothing of each other go to the thread that asks first, so that none waits for a thread that has not
begun, for want of a core or of Python's lock. Parts of a later stage wait until all before them have ended.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types

from decoding.compiled import compiled_in_place
from decoding.vector_emitter import VectorEmitter, llvm_function

_ARRIVED, _TIMES = 0, 8
"""Where a barrier has the number of threads that wait, and how often all have met: in different lines of a cache."""

_NUM_TAKEN, _NUM_ENDED = 16, 24
"""Where it has the number of parts that threads have taken, and of those that have ended: in other lines."""

_LOOKS = 2000
"""Looks of a waiting thread, some 50 us, before it offers its core to others."""

_LONG, _INT = ir.IntType(64), ir.IntType(32)
_OF_X86: tuple[str, list[ir.Constant]] = ("llvm.x86.sse2.pause", [])
_OF_ARM: tuple[str, list[ir.Constant]] = ("llvm.aarch64.hint", [ir.Constant(_INT, 1)])
_PAUSE = {"x86_64": _OF_X86, "AMD64": _OF_X86, "aarch64": _OF_ARM, "arm64": _OF_ARM}.get(platform.machine())
"""The instruction by which a core waits some cycles, and its arguments."""


def new_barrier() -> npt.NDArray[np.int64]:
    """Returns the state of a barrier; the functions below change it."""
    return np.zeros(32, dtype=np.int64)


@llvm_function
def read_number(typing: Any, array: Any, index: Any) -> Any:
    """Returns `array[index]` as it is in memory now."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        e = VectorEmitter(context, builder, sig)
        return builder.load_atomic(e.address(e.data(0, args), args[1], _LONG), "seq_cst", align=8, typ=_LONG)

    return types.int64(array, types.int64), emit


@llvm_function
def _add_number(typing: Any, array: Any, index: Any, amount: Any) -> Any:
    """Adds `amount` to `array[index]`, whatever other threads do, and returns what was there."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        e = VectorEmitter(context, builder, sig)
        return builder.atomic_rmw("add", e.address(e.data(0, args), args[1], _LONG), args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), emit


@llvm_function
def replace_number(typing: Any, array: Any, index: Any, before: Any, after: Any) -> Any:
    """Sets `array[index]` to `after` if it is `before`, whatever other threads do; returns whether it was."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        place = builder.bitcast(e.address(e.data(0, args), args[1], _LONG), _LONG.as_pointer())
        return builder.extract_value(builder.cmpxchg(place, args[2], args[3], "seq_cst"), 1)

    return types.boolean(array, types.int64, types.int64, types.int64), emit


@llvm_function
def pause(typing: Any, offers_core: Any) -> Any:
    """Waits some cycles, or lets the system run another thread."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        if _PAUSE is not None:
            name, values = _PAUSE
            e.call_by_name(name, ir.VoidType(), *values)
        if os.name == "posix":
            with builder.if_then(args[0]):
                e.call_by_name("sched_yield", _INT)
        return context.get_dummy_value()

    return types.void(types.boolean), emit


@compiled_in_place
def wait_for_number(array: npt.NDArray[np.int64], index: int, number: int) -> None:
    """Waits until `array[index]` is at least `number`."""
    looks = 0
    while read_number(array, index) < number:
        looks += 1
        pause(looks > _LOOKS)


@compiled_in_place
def wait_for_team(barrier: npt.NDArray[np.int64], num_threads: int) -> None:
    """Waits until `num_threads` threads are here; what each wrote before, all can read after. *Mutates* `barrier`."""
    if num_threads == 1:
        return
    times = read_number(barrier, _TIMES)
    if _add_number(barrier, _ARRIVED, 1) == num_threads - 1:
        _add_number(barrier, _ARRIVED, -num_threads)
        _add_number(barrier, _TIMES, 1)
        return
    wait_for_number(barrier, _TIMES, times + 1)


@compiled_in_place
def take_part(barrier: npt.NDArray[np.int64]) -> int:
    """Returns the number of the next part, from 0 on, which no other thread gets. *Mutates* `barrier`."""
    number: int = _add_number(barrier, _NUM_TAKEN, 1)
    return number


@compiled_in_place
def end_part(barrier: npt.NDArray[np.int64]) -> None:
    """Says that a part that this thread has taken has ended. *Mutates* `barrier`."""
    _add_number(barrier, _NUM_ENDED, 1)


@compiled_in_place
def wait_for_parts(barrier: npt.NDArray[np.int64], count: int) -> None:
    """Waits until `count` parts have ended; what was written in them, all can read after."""
    wait_for_number(barrier, _NUM_ENDED, count)

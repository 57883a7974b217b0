"""Calls helper threads that wait in compiled code, without Python.

A thread that Python wakes waits for Python's lock, and then unpacks its arguments: 60 to 150 us, as long as a small
forward pass. So helpers stay in compiled code. One that has ended a call looks for the next one for a while; then it
sleeps, reading from a pipe, and a byte wakes it within some 30 us. A helper is called through a number of its own, its
state; what it is to do is in an array, the record. One that has not begun when the work is done is not waited for; one
that has begun is.

States and record are of one caller at a time; only `wake_helpers` may be called beside it. Pipes stay open for as long
as the process runs.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.np.arrayobj import populate_array

from decoding.compiled import compiled_in_place
from decoding.team_barrier import pause, read_number, replace_number, wait_for_number
from decoding.vector_emitter import VectorEmitter, llvm_function

RUNNING, IDLE, CALLED, ASLEEP = range(-1, 3)
"""States of a helper: it has begun with a call; it looks for one; it has one; it waits for a byte. New ones,
which are zeros, are idle; the end of a call is a larger number than `RUNNING`."""

_READ_END, _WRITE_END = 1, 2
"""Where its pipe is noted, after its state."""

_SPACE = 16
"""Numbers from one state to the next: they are in different lines of the cache."""

_LOOKS = 4000
"""Looks of a helper, some 100 us, before it sleeps."""

RECORD_SIZE = 64
"""Numbers of a record, at least: two of each array."""

_LONG, _INT = ir.IntType(64), ir.IntType(32)

Longs = npt.NDArray[np.int64]


NO_STATES: Longs = np.zeros(0, dtype=np.int64)
"""Those of a thread that calls no helper, and waits for no call."""


def new_states(num_helpers: int) -> Longs:
    """Returns the states of helpers, all of them idle and without a pipe."""
    return np.zeros(num_helpers * _SPACE, dtype=np.int64)


def open_pipe(states: Longs, helper: int) -> bool:
    """Gives this helper the pipe that wakes it, if the system has one more; returns whether. *Mutates* `states`."""
    at = helper * _SPACE
    if not states[at + _WRITE_END]:
        try:
            states[at + _READ_END], states[at + _WRITE_END] = os.pipe()
        except OSError:
            return False
    return True


@llvm_function
def _write_byte(typing: Any, file: Any) -> Any:
    """Writes a byte to a pipe."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return _call_system("write", context, builder, sig, args)

    return types.int64(types.int64), emit


@llvm_function
def _read_byte(typing: Any, file: Any) -> Any:
    """Waits for a byte from a pipe, or a signal."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return _call_system("read", context, builder, sig, args)

    return types.int64(types.int64), emit


def _call_system(name: str, context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
    e = VectorEmitter(context, builder, sig)
    place: Any = cgutils.alloca_once(builder, ir.IntType(8))  # type: ignore[no-untyped-call]
    return e.call_by_name(name, _LONG, builder.trunc(args[0], _INT), place, e.integer(1))


@compiled_in_place
def wake_helpers(states: Longs, count: int) -> None:
    """Wakes the first `count` helpers, if there are so many, so that they look for a call. *Mutates* `states`."""
    for at in range(0, min(count * _SPACE, len(states)), _SPACE):
        if replace_number(states, at, ASLEEP, IDLE):
            _write_byte(states[at + _WRITE_END])


@compiled_in_place
def call_helpers(states: Longs, count: int) -> None:
    """Calls the first `count` helpers, whatever they are doing: they come when they look. *Mutates* `states`."""
    for at in range(0, min(count * _SPACE, len(states)), _SPACE):
        if not replace_number(states, at, IDLE, CALLED) and replace_number(states, at, ASLEEP, CALLED):
            _write_byte(states[at + _WRITE_END])


@compiled_in_place
def dismiss_helpers(states: Longs, count: int) -> None:
    """Takes the call back from those that have not begun, and waits for those that have. *Mutates* `states`."""
    for at in range(0, min(count * _SPACE, len(states)), _SPACE):
        if not replace_number(states, at, CALLED, IDLE):
            wait_for_number(states, at, RUNNING + 1)


@compiled_in_place
def wait_for_call(states: Longs, helper: int) -> None:
    """Waits for a call of this helper, and begins it. *Mutates* `states`."""
    at, looks = helper * _SPACE, 0
    while read_number(states, at) != CALLED or not replace_number(states, at, CALLED, RUNNING):
        looks += 1
        pause(False)
        if looks > _LOOKS and replace_number(states, at, IDLE, ASLEEP):
            # a signal ends a read, and a byte may be left of a call that came before its helper read
            while read_number(states, at) == ASLEEP:
                _read_byte(states[at + _READ_END])
            looks = 0


@compiled_in_place
def end_call(states: Longs, helper: int) -> None:
    """Ends the call that this helper has begun. *Mutates* `states`."""
    replace_number(states, helper * _SPACE, RUNNING, IDLE)


@llvm_function
def note_arguments(typing: Any, record: Any, arguments: Any) -> Any:
    """Notes integers, and where arrays are, which are contiguous: the elements of a tuple, beside None.

    *Mutates* `record`. Raises: TypeError for others, when it is compiled.
    """
    for kind in arguments:
        is_array = isinstance(kind, types.Array) and kind.ndim == 1 and kind.layout == "C"
        if not is_array and not isinstance(kind, types.Integer | types.NoneType):
            raise TypeError(f"helpers take integers and contiguous arrays, not {kind}")

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        data, values = e.data(0, args), []
        for kind, value in zip(arguments, _unpack(builder, args[1]), strict=True):
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, value)
                values += [builder.ptrtoint(array.data, _LONG), array.nitems]
            elif isinstance(kind, types.Integer):
                values.append(context.cast(builder, value, kind, types.int64))
        assert len(values) <= RECORD_SIZE, "a record has room for all arguments"
        for number, value in enumerate(values):
            builder.store(value, builder.bitcast(e.address(data, e.integer(number), _LONG), _LONG.as_pointer()))
        return context.get_dummy_value()

    return types.void(record, arguments), emit


@llvm_function
def view_arguments(typing: Any, record: Any, like: Any) -> Any:
    """Returns the integers and arrays that were noted, a tuple of the type of `like`; what is None there is None."""

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        data, number, values = e.data(0, args), 0, []

        def load_next() -> ir.Value:
            nonlocal number
            number += 1
            return e.load_long(data, e.integer(number - 1))

        for kind, value in zip(like, _unpack(builder, args[1]), strict=True):
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder)
                item = e.integer(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
                address = builder.inttoptr(load_next(), array.data.type)
                populate: Any = populate_array
                populate(array, address, [load_next()], [item], item, meminfo=None)
                values.append(array._getvalue())
            elif isinstance(kind, types.Integer):
                values.append(context.cast(builder, load_next(), types.int64, kind))
            else:
                values.append(value)
        return context.make_tuple(builder, like, values)

    return like(record, like), emit


def _unpack(builder: ir.IRBuilder, values: ir.Value) -> list[ir.Value]:
    elements: list[ir.Value] = cgutils.unpack_tuple(builder, values)  # type: ignore[no-untyped-call]
    return elements

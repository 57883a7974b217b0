"""Emits the packing of keys and values of bfloat16 into tiles (see `tile_kernels`) as LLVM code.

A line of a tile of columns has 16 columns, of each two numbers of depth that follow one another. For scores the keys
are columns and a key's numbers are depth; for sums of values a value's numbers are columns and the keys are depth.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from decoding.tile_kernels import TILE, TILE_DEPTH, TILE_NUMBERS, has_tiles_type
from decoding.vector_emitter import LANES, VectorEmitter, llvm_function

_SHORT, _INT = ir.IntType(16), ir.IntType(32)
_INTS, _SHORTS = ir.VectorType(_INT, LANES), ir.VectorType(_SHORT, LANES)


@llvm_function
def pack_keys(
    typing: Any, kv: Any, kv_at: Any, slots: Any, count: Any, stride: Any, depth: Any, panels: Any, panel_at: Any
) -> Any:  # fmt: skip
    """Packs the keys in 32 slots for `multiply_tiles`: one panel whose columns are the keys.

    kv_at    where the keys of the head begin; those of two slots are `stride` numbers apart
    slots    numbers of the 32 slots
    count    keys whose scores are needed: of up to 16 the second half of the columns stays as it is
    depth    numbers of a key, a multiple of 32
    """
    long = types.int64
    signature = types.void(kv, long, slots, long, long, long, panels, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        kv_data, slots_data, panel_data = (e.data(i, args) for i in (0, 2, 6))
        _, kv_at, _, count, stride, depth, _, panel_at = args

        def pack_half(half: int) -> None:
            keys = []
            for key in range(half * TILE, (half + 1) * TILE):
                slot = e.load_long(slots_data, e.integer(key))
                keys.append(builder.add(kv_at, builder.mul(slot, stride)))

            def pack_step(d: ir.Value) -> None:
                lines = []
                for key in keys:
                    address = e.address(kv_data, builder.add(key, d), _SHORT)
                    lines.append(builder.load(builder.bitcast(address, _INTS.as_pointer()), align=2, typ=_INTS))
                at = builder.add(panel_at, builder.mul(d, e.integer(2 * TILE)))
                for pair, line in enumerate(_transpose(e, lines)):
                    _store(e, line, panel_data, builder.add(at, e.integer(half * TILE_NUMBERS + pair * TILE_DEPTH)))

            e.repeat(depth, TILE_DEPTH, pack_step)

        if has_tiles_type(panels):
            pack_half(0)
            with builder.if_then(builder.icmp_signed(">", count, e.integer(TILE))):
                pack_half(1)
        return context.get_dummy_value()

    return signature, emit


@llvm_function
def pack_values(
    typing: Any, kv: Any, kv_at: Any, slots: Any, stride: Any, width: Any, panels: Any, panel_at: Any, panel_size: Any
) -> Any:  # fmt: skip
    """Packs the values in 32 slots for `multiply_tiles`: 32 numbers of depth of a panel for each 32 numbers of a value.

    kv_at       where the values of the head begin; those of two slots are `stride` numbers apart
    width       numbers of a value, a multiple of 32
    panel_size  numbers from one panel to the next
    """
    long = types.int64
    signature = types.void(kv, long, slots, long, long, panels, long, long)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = VectorEmitter(context, builder, sig)
        kv_data, slots_data, panel_data = (e.data(i, args) for i in (0, 2, 5))
        _, kv_at, _, stride, width, _, panel_at, panel_size = args
        shift = ir.Constant(_INTS, [16] * LANES)

        def load(value: ir.Value, d: ir.Value, half: int) -> ir.Value:
            address = e.address(kv_data, builder.add(builder.add(value, d), e.integer(half * LANES)), _SHORT)
            numbers = builder.load(builder.bitcast(address, _SHORTS.as_pointer()), align=2, typ=_SHORTS)
            return builder.zext(numbers, _INTS)

        def pack_pair(pair: ir.Value) -> None:
            two = []
            for key in (pair, builder.add(pair, e.integer(1))):
                two.append(builder.add(kv_at, builder.mul(e.load_long(slots_data, key), stride)))
            line_at = builder.add(panel_at, builder.mul(pair, e.integer(TILE)))

            def pack_columns(d: ir.Value) -> None:
                panel = builder.sdiv(d, e.integer(TILE_DEPTH))
                at = builder.add(line_at, builder.mul(panel, panel_size))
                for half in (0, 1):
                    even, odd = (load(value, d, half) for value in two)
                    line = builder.or_(even, builder.shl(odd, shift))
                    _store(e, line, panel_data, builder.add(at, e.integer(half * TILE_NUMBERS)))

            e.repeat(width, TILE_DEPTH, pack_columns)

        if has_tiles_type(panels):
            e.repeat(e.integer(TILE_DEPTH), 2, pack_pair)
        return context.get_dummy_value()

    return signature, emit


def _store(e: VectorEmitter, line: ir.Value, data: ir.Value, at: ir.Value) -> None:
    pointer = e.builder.bitcast(e.address(data, at, _SHORT), _INTS.as_pointer())
    e.builder.store(line, pointer, align=2)


def _transpose(e: VectorEmitter, lines: list[ir.Value]) -> list[ir.Value]:
    """Returns 16 vectors whose number `i` are the numbers `i` of these."""
    for width in (1, 2, 4, 8):
        first = [lane if not lane & width else LANES + lane - width for lane in range(LANES)]
        second = [lane + width if not lane & width else LANES + lane for lane in range(LANES)]
        for i in (i for i in range(LANES) if not i & width):
            a, b = lines[i], lines[i + width]
            lines[i], lines[i + width] = e.shuffle(a, b, first), e.shuffle(a, b, second)
    return lines

"""Emits operations on vectors of float32 as LLVM code, into functions that Numba compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Numbers of a vector; LLVM cuts it to the registers of the machine."""

FLOAT, SHORT, _INT, _LONG = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VECTOR, _INTS, _SHORTS = (ir.VectorType(kind, LANES) for kind in (FLOAT, _INT, SHORT))


def llvm_function(function: Callable[..., Any]) -> Any:
    """Makes a function that emits code callable from functions that Numba compiles."""
    return intrinsic(prefer_literal=True)(function)


class VectorEmitter:
    """Emits operations on vectors of float32 into a function that Numba compiles."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any) -> None:
        self.context, self.builder, self.signature = context, builder, signature

    def data(self, position: int, args: Sequence[ir.Value]) -> ir.Value:
        """Returns the address of the array that is argument number `position`."""
        array_type = self.signature.args[position]
        return self.context.make_array(array_type)(self.context, self.builder, args[position]).data

    def hide(self, args: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns these arguments, integers as values of which LLVM knows nothing.

        Otherwise its search for cheap indices takes seconds in nested loops, over the sums that these integers are.
        """
        kind = ir.FunctionType(_LONG, [_LONG])
        return [self.builder.asm(kind, "", "=r,0", [arg], False) if arg.type == _LONG else arg for arg in args]

    def integer(self, value: int) -> ir.Constant:
        return ir.Constant(_LONG, value)

    def vector(self, value: float) -> ir.Constant:
        return ir.Constant(_VECTOR, [value] * LANES)

    def address(self, data: ir.Value, index: ir.Value, kind: ir.Type = FLOAT) -> ir.Value:
        return self.builder.gep(data, [index], source_etype=kind)

    def load(self, data: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self.address(data, index), align=4, typ=_VECTOR)

    def store(self, value: ir.Value, data: ir.Value, index: ir.Value) -> None:
        pointer = self.builder.bitcast(self.address(data, index), value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def store_ints(self, value: ir.Value, data: ir.Value, index: ir.Value) -> None:
        pointer = self.builder.bitcast(self.address(data, index, _INT), value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def load_first(self, data: ir.Value, index: ir.Value, count: ir.Value, other: ir.Value) -> ir.Value:
        """Returns the first `count` numbers there, and `other` in the other lanes; does not read beyond."""
        pointer = self.builder.bitcast(self.address(data, index), ir.PointerType())
        lanes, align = self.lanes_below(count), ir.Constant(_INT, 4)
        return self.call_by_name(f"llvm.masked.load.v{LANES}f32.p0", _VECTOR, pointer, align, lanes, other)

    def load_panel_half(self, data: ir.Value, index: ir.Value, half: int, has_pairs: bool) -> ir.Value:
        """Returns the first or the last 16 numbers of a row of a panel, which begins at `index`."""
        if not has_pairs:
            return self.load(data, self.builder.add(index, self.integer(half * LANES)))
        return self.widen_pairs(self.load_pairs(data, index))[half]

    def load_pairs(self, data: ir.Value, index: ir.Value) -> ir.Value:
        """Returns 32 numbers of bfloat16 there as 16 pairs of 32 bits, of which the first number is the lower half."""
        return self.builder.load(self.address(data, index, SHORT), align=2, typ=_INTS)

    def load_pair_broadcast(self, data: ir.Value, index: ir.Value) -> ir.Value:
        """Returns the pair of bfloat16 there, 16 times."""
        return self.broadcast(self.builder.load(self.address(data, index, SHORT), align=2, typ=_INT), _INTS)

    def load_as_pairs(self, data: ir.Value, index: ir.Value) -> ir.Value:
        """Returns 32 numbers of float32 there, rounded to bfloat16, as 16 pairs."""
        first, second = (self.load(data, self.builder.add(index, self.integer(at))) for at in (0, LANES))
        halves = ir.VectorType(SHORT, 2 * LANES)
        rounded = self.call_by_name("llvm.x86.avx512bf16.cvtne2ps2bf16.512", halves, second, first)
        return self.builder.bitcast(rounded, _INTS)

    def multiply_add_pairs(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Returns c plus both products of each pair of bfloat16 (AVX512_BF16)."""
        return self.call_by_name("llvm.x86.avx512bf16.dpbf16ps.512", _VECTOR, c, a, b)

    def widen_pairs(self, pairs: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Returns the first numbers of 16 pairs of bfloat16, and the second ones, as float32."""
        first = self.builder.shl(pairs, self._ints(16))
        second = self.builder.and_(pairs, self._ints(0xFFFF0000))
        return self.builder.bitcast(first, _VECTOR), self.builder.bitcast(second, _VECTOR)

    def split_pairs(self, low: ir.Value, high: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Returns the first numbers of the 16 pairs that these 32 numbers are, and the second ones."""
        lanes = range(2 * LANES)
        return self.shuffle(low, high, lanes[::2]), self.shuffle(low, high, lanes[1::2])

    def join_pairs(self, first: ir.Value, second: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Returns the 32 numbers of which these are the first and the second of each pair."""
        lanes = [lane for pair in range(LANES) for lane in (pair, LANES + pair)]
        return self.shuffle(first, second, lanes[:LANES]), self.shuffle(first, second, lanes[LANES:])

    def store_numbers(self, value: ir.Value, data: ir.Value, index: ir.Value, are_halves: bool) -> None:
        """Stores a vector as float32, or as the nearest numbers of bfloat16, of two as near the even one.

        NaN stays NaN where arithmetic made it: its lower bits are 0.
        """
        if not are_halves:
            self.store(value, data, index)
            return
        bits = self.builder.bitcast(value, _INTS)
        is_odd = self.builder.and_(self.builder.lshr(bits, self._ints(16)), self._ints(1))
        bits = self.builder.add(bits, self.builder.add(is_odd, self._ints(0x7FFF)))
        self.store_high_halves(bits, data, index)

    def store_high_halves(self, bits: ir.Value, data: ir.Value, index: ir.Value) -> None:
        """Stores the higher 16 bits of each number: of the bits of a float32 those of a bfloat16, cut off."""
        halves = self.builder.trunc(self.builder.lshr(bits, self._ints(16)), _SHORTS)
        pointer = self.builder.bitcast(self.address(data, index, SHORT), _SHORTS.as_pointer())
        self.builder.store(halves, pointer, align=2)

    @staticmethod
    def _ints(value: int) -> ir.Constant:
        return ir.Constant(_INTS, [value] * LANES)

    def prefetch(self, data: ir.Value, index: ir.Value, kind: ir.Type) -> None:
        """Asks for the memory there, without waiting for it."""
        pointer = self.builder.bitcast(self.address(data, index, kind), ir.PointerType())
        self.call_by_name("llvm.prefetch.p0", ir.VoidType(), pointer, *(ir.Constant(_INT, n) for n in (0, 3, 1)))

    def load_long(self, data: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self.address(data, index, _LONG), align=8, typ=_LONG)

    def broadcast(self, scalar: ir.Value, kind: ir.VectorType = _VECTOR) -> ir.Value:
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_INT, 0))
        return self.builder.shuffle_vector(first, first, self._ints(0))

    def lanes_below(self, count: ir.Value) -> ir.Value:
        """Returns for each lane whether its number is below `count`."""
        lanes = ir.Constant(ir.VectorType(_LONG, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", lanes, self.broadcast(count, lanes.type))

    def load_broadcast(self, data: ir.Value, index: ir.Value) -> ir.Value:
        return self.broadcast(self.builder.load(self.address(data, index), align=4, typ=FLOAT))

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Returns a * b + c, rounded once where the machine can."""
        return self.call("llvm.fmuladd", a, b, c)

    def call(self, name: str, *vectors: ir.Value) -> ir.Value:
        """Calls a function that LLVM has for every kind of vector."""
        return self.call_by_name(f"{name}.v{LANES}f32", _VECTOR, *vectors)

    def call_by_name(self, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
        """Calls a function of LLVM, or of a library that the process has loaded."""
        kind = ir.FunctionType(result, [value.type for value in values])
        function: Any = cgutils.get_or_insert_function(self.builder.module, kind, name)  # type: ignore[no-untyped-call]
        return self.builder.call(function, values)

    def shuffle(self, a: ir.Value, b: ir.Value, lanes: Sequence[int]) -> ir.Value:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), list(lanes)))

    def fold_pairs(self, a: ir.Value, b: ir.Value, width: int) -> ir.Value:
        """Adds each run of `width` lanes to the run after it, in `a` and in `b`; those of `a` come first."""
        low = [lane for lane in range(2 * LANES) if lane // width % 2 == 0]
        return self.builder.fadd(self.shuffle(a, b, low), self.shuffle(a, b, [lane + width for lane in low]))

    def sum_lanes(self, a: ir.Value) -> ir.Value:
        for width in (8, 4, 2, 1):
            a = self.fold_pairs(a, a, width)
        return self.builder.extract_element(a, ir.Constant(_INT, 0))

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns the larger number of each lane; `b` where `a` is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def spread_largest(self, a: ir.Value) -> ir.Value:
        """Returns the largest lane in all lanes; no lane may be NaN."""
        for width in (8, 4, 2, 1):
            a = self.larger(self.shuffle(a, a, [lane ^ width for lane in range(LANES)]), a)
        return a

    def find_largest(self, a: ir.Value) -> ir.Value:
        """Returns the largest lane; no lane may be NaN."""
        return self.builder.extract_element(self.spread_largest(a), ir.Constant(_INT, 0))

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def loop(
        self,
        count: ir.Value,
        step: int,
        carried: Sequence[ir.Value],
        body: Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]],
    ) -> list[ir.Value]:
        """Emits `for i in range(0, count, step): carried = body(i, carried)`; returns what is carried at the end."""
        builder = self.builder
        before = builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        i = builder.phi(_LONG)
        i.add_incoming(self.integer(0), before)
        phis = []
        for value in carried:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        builder.cbranch(builder.icmp_signed("<", i, count), inside, after)
        builder.position_at_end(inside)
        results = body(i, phis)
        i.add_incoming(builder.add(i, self.integer(step)), builder.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return phis

    def repeat(self, count: ir.Value, step: int, body: Callable[[ir.Value], None]) -> None:
        """Emits `for i in range(0, count, step): body(i)`."""

        def run_body(i: ir.Value, carried: Sequence[ir.Value]) -> Sequence[ir.Value]:
            body(i)
            return carried

        self.loop(count, step, [], run_body)

    def exp(self, x: ir.Value) -> ir.Value:
        """Returns e^x within 2 units in the last place: 2^n by the exponent's bits, the rest by Cephes' polynomial."""
        builder = self.builder
        # selects, not minima: NaN must come out as NaN
        for bound, sign in ((88.0, ">"), (-87.0, "<")):
            x = builder.select(builder.fcmp_ordered(sign, x, self.vector(bound)), self.vector(bound), x)
        n = self.call("llvm.roundeven", builder.fmul(x, self.vector(1.44269504)))
        r = self.multiply_add(n, self.vector(-0.693359375), x)
        r = self.multiply_add(n, self.vector(2.12194440e-4), r)
        p = self.vector(1.9875691500e-4)
        for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = self.multiply_add(p, r, self.vector(coefficient))
        p = builder.fadd(self.multiply_add(p, builder.fmul(r, r), r), self.vector(1.0))
        # NaN's integer is arbitrary, but NaN times any number is NaN
        exponent = builder.add(builder.fptosi(n, _INTS), self._ints(127))
        power = builder.bitcast(builder.shl(exponent, self._ints(23)), _VECTOR)
        return builder.fmul(p, power)

"""The trace of code on the meta device agrees with counts made by hand, and refuses what it cannot count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reason.bench.custom_costs import HostValues, UnknownOperator
from reason.bench.meta_trace import DeviceTrace

META = torch.device("meta")


@contextmanager
def traced(*weights: Tensor) -> Iterator[DeviceTrace]:
    with torch.inference_mode(), DeviceTrace({}, "all", weights) as trace:
        yield trace


def on_meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def test_a_sequence_of_operators_is_counted_as_by_hand() -> None:
    x, weight = on_meta(2, 8), on_meta(8, 16)
    with traced(weight) as trace:
        y = x @ weight  # 2 x 8 and 8 x 16 read, 2 x 16 written
        y.view(4, 8).transpose(0, 1)[1:]  # nothing
        y.mul_(2.0)  # read and written
        y.softmax(-1)
        y.index_select(0, on_meta(3, dtype=torch.long))  # 3 rows read and written, 3 ids of 8 bytes
        torch.zeros(5, device=META)  # written
        y.to(torch.bfloat16)
    assert [(kernel.name, kernel.launches, kernel.bytes_moved, kernel.flops) for kernel in trace.kernels] == [
        ("aten::mm", 1, 4 * (16 + 128 + 32), 2 * 2 * 8 * 16),
        ("aten::mul_", 1, 4 * 64, 0),
        ("aten::_softmax", 1, 4 * 64, 0),
        ("aten::index_select", 1, 4 * 2 * 48 + 24, 0),
        ("aten::zero_", 1, 4 * 5, 0),
        ("aten::copy_", 1, 4 * 32 + 2 * 32, 0),
    ]
    assert [kernel.weight_bytes for kernel in trace.kernels] == [4 * 128, 0, 0, 0, 0, 0]
    assert not trace.copies


@pytest.mark.parametrize(
    ("addend", "beta", "launches", "numbers"),
    [
        (on_meta(16), 1, 1, 16 + 128 + 32 + 16),  # a vector is added by the product
        (on_meta(2, 16), 1, 2, 16 + 128 + 32 + 3 * 32),  # copied to the result first: read, written, read again
        (on_meta(2, 16), 0, 1, 16 + 128 + 32),
    ],
)
def test_the_copy_of_a_full_addend_is_counted(addend: Tensor, beta: int, launches: int, numbers: int) -> None:
    with traced() as trace:
        torch.addmm(addend, on_meta(2, 8), on_meta(8, 16), beta=beta)
    assert [(kernel.launches, kernel.bytes_moved) for kernel in trace.kernels] == [(launches, 4 * numbers)]


def test_what_repeats_the_same_memory_is_read_once() -> None:
    with traced() as trace:
        on_meta(1, 8).expand(100, 8) + on_meta(100, 8)
    assert [kernel.bytes_moved for kernel in trace.kernels] == [4 * (8 + 800 + 800)]


def test_operators_are_followed_into_those_that_they_are_made_of() -> None:
    with traced() as trace:
        on_meta(4, 8).masked_fill(on_meta(4, 8, dtype=torch.bool), 0.0)  # a copy, which is then filled
        on_meta(4, 8).logsumexp(-1)
        torch.nn.functional.rms_norm(on_meta(4, 8), (8,), on_meta(8), 1e-6)  # one kernel on CUDA
    names = [kernel.name.removeprefix("aten::") for kernel in trace.kernels]
    assert names[:2] == ["copy_", "masked_fill_"]
    assert {"amax", "sub", "exp_", "sum", "log_"} <= set(names)
    assert names[-1] == "rms_norm"


def test_copies_and_waits_are_counted() -> None:
    array = torch.from_numpy(np.zeros(6, dtype=np.float32))
    with traced() as trace:
        there = array.to(META, non_blocking=True)
        array.to(META)
        back = (there + 1).cpu()
        value = there[0].item()
    assert [(copy.to_host, copy.size_bytes, copy.waits) for copy in trace.copies] == [
        (False, 24, False),
        (False, 24, True),
        (True, 24, True),
        (True, 4, True),
    ]
    assert back.tolist() == [0.0] * 6  # there are no values on the meta device
    assert value == 0.0


def test_work_on_the_host_is_not_counted() -> None:
    with traced() as trace:
        (torch.ones(3) * 2).sum()
    assert not trace.kernels
    assert not trace.copies


def test_what_depends_on_values_is_refused() -> None:
    with traced(), pytest.raises(ValueError, match="nonzero waits for the device"):
        on_meta(4).nonzero()


def test_an_unknown_operator_is_refused() -> None:
    library: Any = torch.library.Library("trace_test", "DEF")  # type: ignore[no-untyped-call]
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", torch.empty_like, "Meta")
    with traced(), pytest.raises(UnknownOperator, match="trace_test::double"):
        torch.ops.trace_test.double(on_meta(4))


def test_operators_belong_to_the_innermost_function_that_is_named() -> None:
    def inner(x: Tensor) -> Tensor:
        return x + 1

    def outer(x: Tensor) -> Tensor:
        return inner(x * 2) - 1

    with torch.inference_mode(), DeviceTrace({inner.__code__: "in", outer.__code__: "out"}, "none") as trace:
        outer(on_meta(3)).neg()
    assert [kernel.phase for kernel in trace.kernels] == ["out", "in", "out", "none"]


def test_values_copied_from_the_host_are_known_and_others_are_not() -> None:
    known, there = HostValues(), on_meta(24, dtype=torch.uint8)
    known.remember_copy(there, torch.arange(6, dtype=torch.int32).view(torch.uint8))
    assert known.read_values(there[8:20].view(torch.int32)).tolist() == [2, 3, 4]
    with pytest.raises(ValueError, match="not known"):
        known.read_values(on_meta(3))

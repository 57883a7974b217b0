"""Records what code on the meta device would ask of a CUDA device: launches, bytes, copies between both, and waits.

No arithmetic happens on the meta device: tensors have shapes and no values. So the engine's own code runs at the size
of a large model on any machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from reason.bench.custom_costs import HostValues, estimate_custom
from reason.bench.operator_costs import Options, Values, as_tensor, estimate_operator, is_free, iter_tensors

_ONE_KERNEL = {"rms_norm"}  # composed of others on the meta device, one kernel on CUDA (torch 2.9 and later)
_SIZED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}
_META = torch.device("meta")


@dataclass(frozen=True)
class KernelRecord:
    """One call of an operator on the device. `weight_bytes` are the bytes of its reads that are weights."""

    phase: str
    name: str
    launches: int
    bytes_moved: int
    weight_bytes: int
    flops: int


@dataclass(frozen=True)
class CopyRecord:
    """One copy between host and device. `waits` is whether the host waits for the device because of it."""

    phase: str
    to_host: bool
    size_bytes: int
    waits: bool


@dataclass(eq=False)
class DeviceTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators on the meta device that run in its context, in a thread.

    phases   names by the code of a function: an operator belongs to the innermost of them that is being called
    default  the phase of an operator outside all of them
    weights  tensors whose reads are counted as weights

    A copy to the host gives zeros. It counts as a wait, asynchronous or not: the host must wait before it reads them. A
    copy to the device waits unless it is `non_blocking`. Arrays that `torch.tensor` makes there are not visible.

    Raises: UnknownOperator; ValueError for an operator whose result has a size that depends on values.
    """

    phases: Mapping[CodeType, str]
    default: str
    weights: Sequence[Tensor] = ()
    kernels: list[KernelRecord] = field(default_factory=list)
    copies: list[CopyRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._host_values = HostValues()
        self._weight_storages = {tensor.untyped_storage()._cdata for tensor in self.weights}

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Values = (), kwargs: Options | None = None
    ) -> object:
        kwargs = kwargs or {}
        values = [*args, *kwargs.values()]
        on_device = any(tensor.is_meta for tensor in iter_tensors(values))
        if not (on_device or _META in [value for value in values if isinstance(value, torch.device)]):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "copy_" and len({tensor.device for tensor in iter_tensors(args)}) > 1:
            target, source = (as_tensor(value) for value in args[:2])
            is_asynchronous = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            return self._copy_across(target, source, is_asynchronous)
        if name == "_local_scalar_dense":
            (tensor,) = iter_tensors(args)
            self.copies.append(CopyRecord(self._find_phase(), True, tensor.element_size(), True))
            return torch.zeros((), dtype=tensor.dtype, device="cpu").item()
        if name in _SIZED_BY_VALUES:
            raise ValueError(f"{name} waits for the device, and what follows depends on values: it cannot be traced")
        if name in _ONE_KERNEL:
            result: object = torch.empty_like(next(iter_tensors(args)))
        elif key := _find_composite(func):
            with self:  # the operators that it is composed of are seen
                return func._op_dk(key, *args, **kwargs)
        else:
            result = func(*args, **kwargs)
        if not is_free(func):
            self._record_kernel(func, args, kwargs, list(iter_tensors(result)))
        return result

    def _record_kernel(self, func: OpOverload, args: Values, kwargs: Options, results: list[Tensor]) -> None:
        if func.namespace == "aten":
            cost = estimate_operator(func, args, kwargs, results)
        else:
            cost = estimate_custom(func, args, tuple(results), self._host_values)
        weights = sum(
            read.size_bytes for read in cost.reads if read.tensor.untyped_storage()._cdata in self._weight_storages
        )
        name = f"{func.namespace}::{func.overloadpacket.__name__}"
        self.kernels.append(
            KernelRecord(self._find_phase(), name, cost.launches, cost.bytes_moved, weights, cost.flops)
        )

    def _copy_across(self, target: Tensor, source: Tensor, is_asynchronous: bool) -> Tensor:
        size = source.numel() * source.element_size()
        to_host = source.is_meta
        self.copies.append(CopyRecord(self._find_phase(), to_host, size, to_host or not is_asynchronous))
        if to_host:
            return target.zero_()
        self._host_values.remember_copy(target, source)
        return target

    def _find_phase(self) -> str:
        frame = sys._getframe(1)
        while frame is not None:
            if phase := self.phases.get(frame.f_code):
                return phase
            frame = frame.f_back  # type: ignore[assignment]
        return self.default


def _find_composite(func: OpOverload) -> torch._C.DispatchKey | None:
    """Returns the key of the kernel that composes an operator of others; None for one that backends implement.

    What the CPU implements itself, CUDA does as well.
    """
    name = str(func.name())  # type: ignore[no-untyped-call]
    # a number is made a tensor on the host, which is no launch; filling makes a copy to fill, which is one
    is_number_wrapped = func._overloadname.startswith("Scalar") and func.overloadpacket.__name__ != "masked_fill"
    if func.namespace != "aten" or is_number_wrapped or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
        return None
    for key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
        if name != "aten::copy_" and torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return getattr(torch._C.DispatchKey, key)  # type: ignore[no-any-return]
    return None

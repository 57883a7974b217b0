"""A GPU that is not there: tensors that say they are on `cuda:0`, and errors where a real one would raise them.

What is moved to CUDA gets memory of its own, in fact the host's, which is remembered; what is computed from it is
there too. As with a real one, an operation may not mix both places and NumPy may not read what is there. So *where*
the code puts things is tested on any machine. Kernels, streams, autograd and speed are not.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

Property: Any = Tensor  # its attributes are descriptors, which the stubs say they are not
CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
# What PyTorch allows across devices: copies, indices on the CPU, and questions about two tensors.
ACROSS = {
    Tensor.copy_, Tensor.__getitem__, Tensor.__setitem__, Tensor.index_put_, Property.data.__set__, Tensor.__repr__,
    torch._has_compatible_shallow_copy_type,
}  # fmt: skip
READS = {Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__}
HOST_ONLY = {Tensor.numpy, Tensor.__array__, Tensor.data_ptr}


@contextmanager
def some_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is a CUDA device meanwhile: the machine's, or a pretended one."""
    with nullcontext() if torch.cuda.is_available() else pretended_gpu(monkeypatch):
        yield


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    """In this thread and those started meanwhile there is a pretended CUDA device; it counts copies to the host."""
    mode, run = PretendedGpu(), threading.Thread.run

    def inside(thread: threading.Thread) -> None:
        with mode:
            run(thread)

    with monkeypatch.context() as patched, mode:
        patched.setattr(threading.Thread, "run", inside)
        patched.setattr(torch.cuda, "is_available", lambda: True)
        yield mode


class PretendedGpu(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._there: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
        self.copies_to_host = 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        there, here = self._split_by_device(args, kwargs)
        if func == Property.device.__get__:  # made anew at every reading: never identical
            return CUDA if there else func(*args)
        if func in (Property.is_cuda.__get__, Property.is_cpu.__get__):
            return bool(there) == (func == Property.is_cuda.__get__)
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._move_tensor(func, *args, **kwargs)
        self.copies_to_host += bool(there) and func in READS
        if there and func in HOST_ONLY:
            raise TypeError(f"{resolve_name(func)} of a tensor on {CUDA}")
        if there and func not in ACROSS and any(tensor.dim() for tensor in here):
            raise RuntimeError(f"{resolve_name(func)}: {len(there)} tensors on {CUDA}, {len(here)} on the CPU")
        on_cuda = bool(there)
        if kwargs.get("device") is not None:
            on_cuda = torch.device(kwargs["device"]).type == "cuda"
            kwargs["device"] = CPU if on_cuda else kwargs["device"]
        result = func(*args, **kwargs)
        return self._mark_on_cuda(result) if on_cuda else result

    def _split_by_device(self, *values: Any) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors in `values`: those on CUDA, those elsewhere."""
        with torch._C.DisableTorchFunction():
            there: dict[bool, list[Tensor]] = {True: [], False: []}
            for tensor in _iter_tensors(values):
                there[id(tensor.untyped_storage()) in self._there].append(tensor)
        return there[True], there[False]

    def _mark_on_cuda(self, result: Any) -> Any:
        with torch._C.DisableTorchFunction():
            for tensor in _iter_tensors(result):
                storage = tensor.untyped_storage()
                self._there[id(storage)] = storage
        return result

    def _move_tensor(
        self, func: Callable[..., Any], tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any
    ) -> Tensor:
        device, dtype = (CPU if func == Tensor.cpu else CUDA), None
        was = bool(self._split_by_device(tensor)[0])
        if func == Tensor.to:
            if args and isinstance(args[0], Tensor):
                args = (CUDA if self._split_by_device(args[0])[0] else CPU, args[0].dtype, *args[1:])
            device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        wanted = was if device is None else device.type == "cuda"
        with torch._C.DisableTorchFunction():
            moved = tensor if dtype is None else tensor.to(dtype)
            if moved is tensor and (copy or wanted != was):
                moved = tensor.clone()
        self.copies_to_host += was and not wanted
        return self._mark_on_cuda(moved) if wanted else moved


def _iter_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_tensors(item)

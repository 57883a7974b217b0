"""A simulated GPU: tensors that report `cuda:0`, and errors where a real GPU raises them.

A tensor moved to CUDA is copied within the host's memory, and its storage is recorded as CUDA's; so are the results
computed from it. As on a real GPU, an operation may not mix tensors of both devices, and NumPy cannot read those on
CUDA. So the placement of tensors is tested on any machine, and what is launched on which stream. Kernels, autograd and
speed are not.
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

from decoding.model import segment_attention
from tests.support.pretended_streams import PretendedStreams

Property: Any = Tensor  # its attributes are descriptors, other than in the stubs
CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
FREE_AND_TOTAL_BYTES = 1 << 29, 1 << 30
# Operations that PyTorch allows across devices: copies, indices on the CPU, comparisons of types.
ACROSS = {
    Tensor.copy_, Tensor.__getitem__, Tensor.__setitem__, Tensor.index_put_, Property.data.__set__, Tensor.__repr__,
    torch._has_compatible_shallow_copy_type,
}  # fmt: skip
READS = {Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__}
# A few of the calls that launch nothing: attributes.
VIEWS = {
    Property.shape.__get__, Property.dtype.__get__, Property.ndim.__get__, Property.layout.__get__, Tensor.dim,
    Tensor.numel, Tensor.size, Tensor.stride, Tensor.__len__, Tensor.is_floating_point, Tensor.untyped_storage,
    Tensor.is_contiguous, Property.requires_grad.__get__, Property.grad.__get__, Tensor.element_size,
}  # fmt: skip
HOST_ONLY = {Tensor.numpy, Tensor.__array__, Tensor.data_ptr}


@contextmanager
def real_or_pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provides a CUDA device meanwhile: the machine's, or a pretended one."""
    with nullcontext() if torch.cuda.is_available() else pretended_gpu(monkeypatch):
        yield


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    """Provides a pretended CUDA device to this thread and those started meanwhile; it counts copies to the host."""
    mode, run = PretendedGpu(), threading.Thread.run

    def run_in_mode(thread: threading.Thread) -> None:
        with mode:
            run(thread)

    with monkeypatch.context() as patched, mode:
        patched.setattr(threading.Thread, "run", run_in_mode)
        patched.setattr(torch.cuda, "is_available", lambda: True)
        patched.setattr(torch.cuda, "get_device_name", lambda device: f"pretended {device}")
        patched.setattr(torch.cuda, "mem_get_info", lambda device: FREE_AND_TOTAL_BYTES)
        mode.streams.patch(patched)
        # Triton's kernels would run on the CPU, interpreted: hours for a search
        patched.setattr(segment_attention, "has_triton", lambda: False)
        yield mode


class PretendedGpu(TorchFunctionMode):
    """Intercepts all functions of torch; `copies_to_host` counts copies and reads of values.

    largest_copy     numbers in the largest tensor that was copied to the host
    numbers_to_host  numbers in all of them, and in those whose values were read
    streams          the streams that operations were launched on
    """

    def __init__(self) -> None:
        super().__init__()
        self._cuda_storages: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
        self.copies_to_host = self.largest_copy = self.numbers_to_host = 0
        self.streams = PretendedStreams()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)  # all memory is the host's here
        if func == Tensor.pin_memory:
            return args[0]
        on_gpu, on_host = self._split_by_device(args, kwargs)
        if func == Property.device.__get__:  # a new object at every reading: `is` never holds
            return CUDA if on_gpu else func(*args)
        if func in (Property.is_cuda.__get__, Property.is_cpu.__get__):
            return bool(on_gpu) == (func == Property.is_cuda.__get__)
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._move_tensor(func, *args, **kwargs)
        if on_gpu and func in READS:
            self._count_copy(on_gpu[0])
        if on_gpu and func in HOST_ONLY:
            raise TypeError(f"{resolve_name(func)} of a tensor on {CUDA}")
        if on_gpu and func not in ACROSS and any(tensor.dim() for tensor in on_host):
            raise RuntimeError(f"{resolve_name(func)}: {len(on_gpu)} tensors on {CUDA}, {len(on_host)} on the CPU")
        on_cuda = bool(on_gpu)
        if kwargs.get("device") is not None:
            on_cuda = torch.device(kwargs["device"]).type == "cuda"
            kwargs["device"] = CPU if on_cuda else kwargs["device"]
        result = func(*args, **kwargs)
        if on_cuda and func not in VIEWS:
            self.streams.count_launch()
        return self._mark_on_cuda(result) if on_cuda else result

    def _split_by_device(self, *values: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the tensors in `values`: those on CUDA, and the others."""
        with torch._C.DisableTorchFunction():
            by_device: dict[bool, list[Tensor]] = {True: [], False: []}
            for tensor in _iter_tensors(values):
                by_device[id(tensor.untyped_storage()) in self._cuda_storages].append(tensor)
        return by_device[True], by_device[False]

    def _mark_on_cuda(self, result: Any) -> Any:
        with torch._C.DisableTorchFunction():
            for tensor in _iter_tensors(result):
                storage = tensor.untyped_storage()
                self._cuda_storages[id(storage)] = storage
        return result

    def _move_tensor(
        self, func: Callable[..., Any], tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any
    ) -> Tensor:
        device, dtype = (CPU if func == Tensor.cpu else CUDA), None
        from_cuda = bool(self._split_by_device(tensor)[0])
        if func == Tensor.to:
            if args and isinstance(args[0], Tensor):
                args = (CUDA if self._split_by_device(args[0])[0] else CPU, args[0].dtype, *args[1:])
            device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        to_cuda = from_cuda if device is None else device.type == "cuda"
        with torch._C.DisableTorchFunction():
            moved = tensor if dtype is None else tensor.to(dtype)
            if moved is tensor and (copy or to_cuda != from_cuda):
                moved = tensor.clone()
        if from_cuda and not to_cuda:
            self._count_copy(moved)
        elif to_cuda and not from_cuda:
            self.streams.count_launch()
        return self._mark_on_cuda(moved) if to_cuda else moved

    def _count_copy(self, moved: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            numbers = moved.numel()
        self.copies_to_host += 1
        self.streams.waits += 1
        self.largest_copy = max(self.largest_copy, numbers)
        self.numbers_to_host += numbers


def _iter_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_tensors(item)

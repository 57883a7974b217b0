"""Runs the rounds of an engine loop on a CUDA stream of its own, so that no loop waits for the kernels of another one.

Tensors cross streams in three places, and each is safe:

weights, pools, tables   made on the default stream, which the loop's stream waits for before its first round
results of a round       leave the device by copies that the host waits for; other threads get arrays of NumPy
freed memory             PyTorch reuses a tensor's memory on the stream that it was made on, whatever others still do
                         with it. A loop without requests has synchronised its stream, so nothing is in use that is
                         freed after `close`, or with an engine that was not closed. What a round itself makes and
                         frees is of the same stream; what it frees of others it waits for (`wait_for_stream`)
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch

_STREAMS: MutableMapping[object, torch.cuda.Stream] = WeakKeyDictionary()
"""By model. Its rotary table and its CUDA graphs' memory serve all its loops, so these must not run at the same time;
and PyTorch has 32 streams, which the engines of a warm-up profile, one after the other, would use up."""


class DeviceStream:
    """The stream of one engine loop: that of its model. On a CPU there is none, and nothing is done.

    model    its backend
    device   that of its KV pool, with an index
    """

    def __init__(self, model: object, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            if model not in _STREAMS:
                _STREAMS[model] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream = _STREAMS[model]
        self._has_waited = False

    @contextmanager
    def use(self) -> Iterator[None]:
        """Makes device and stream the current ones of this thread meanwhile; waits for the stream at the end.

        At the first use the stream waits for what was launched on the default stream until now; the host does not.
        """
        if self._stream is None:
            yield
            return
        # a new thread has device 0 as its current one, where Triton and graphs would launch
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if not self._has_waited:
                self._has_waited = True
                self._stream.wait_stream(torch.cuda.default_stream(self._device))
            try:
                yield
            finally:
                self._stream.synchronize()


def wait_for_stream(device: torch.device) -> None:
    """Makes the host wait for the current stream: before a round frees memory that was made on another one."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()

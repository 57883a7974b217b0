"""Counts the memory of tensors while a program runs, by the storages that are alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages of all results of operations within `with`, and those added by hand.

    now    bytes that are alive
    peak   the most that were
    trace  (operation, bytes alive after it) of all operations
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, int] = {}
        self.now = self.peak = 0
        self.trace: list[tuple[str, int]] = []

    def add(self, tensor: Tensor) -> None:
        """Counts a tensor's storage, once, from now on until it dies."""
        storage = tensor.untyped_storage()
        if tensor.device.type == "meta" or storage.data_ptr() in self._alive or not storage.nbytes():
            return
        address = storage.data_ptr()
        self._alive[address] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, address)

    def _remove(self, address: int) -> None:
        self.now -= self._alive.pop(address, 0)

    def restart(self) -> None:
        """Starts a new peak from what is alive now."""
        self.peak = self.now

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        self.trace.append((str(func), self.now))
        return result

"""Lays out matrices in panels (see `panels`), and takes memory for them and for passes."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.cpu_features import has_pair_products, has_tiles
from decoding.kv.pool_memory import map_huge_pages
from decoding.model.panels import Panels, PanelType, round_up
from decoding.tile_kernels import TILE, TILE_DEPTH
from decoding.vector_emitter import LANES
from decoding.vector_kernels import PANEL

_LINE = 64
"""Bytes of a line of the cache: a vector, or a line of a tile, that lies in two lines takes twice as long or more."""

_HUGE_PAGE = 1 << 21
_FEWEST_BYTES = 1 << 20
"""Bytes of weights from which on they have huge pages; NumPy asks for them from 4 MiB on. Of small pages a pass of the
bundled target reads 900, which the CPU has to look up anew when a draft model and Python have read as many others: its
rounds take 1 to 5 % longer, after other work up to 15 %."""


def pick_panel_type(matrices: Iterable[Tensor], depth: int, dtype: torch.dtype) -> PanelType:
    """Returns the type of number for these matrices, which are multiplied by the same code.

    depth   the one that is not filled up to a multiple of 32
    dtype   of the model
    """
    if not all(_is_bfloat16(matrix) for matrix in matrices):
        return np.float32
    # a row of float32 is three of bfloat16: vectors of pairs take longer than vectors of float32
    in_tiles = has_tiles() or (dtype == torch.bfloat16 and has_pair_products())
    return np.int16 if in_tiles and depth % TILE_DEPTH == 0 else np.uint16


def _is_bfloat16(weight: Tensor) -> bool:
    """Returns whether every number is one of bfloat16, as in most checkpoints."""
    return weight.dtype == torch.bfloat16 or torch.equal(weight.to(torch.bfloat16).to(weight.dtype), weight)


def write_panels(rows: Tensor, panels: Panels) -> None:
    """Lays out a matrix in `panels`, which has as many numbers and says how. *Mutates* `panels`.

    rows  `[columns, depth]`, as a checkpoint has it: of 16 columns and 32 numbers of their depth, each copy reads and
          writes what lies side by side
    """
    columns, depth = rows.shape
    count = columns // PANEL
    if panels.dtype == np.float32:
        floats = rows.float().numpy()
        panels.reshape(count, depth, PANEL)[:] = floats.reshape(count, PANEL, depth).transpose(0, 2, 1)
        return
    halves = rows.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
    if panels.dtype == np.uint16:
        low, high = halves.view(np.uint16).reshape(count, 2, LANES, depth).transpose(1, 0, 2, 3)
        pairs = low | high.astype(np.uint32) << 16
        panels.view(np.uint32).reshape(count, depth, LANES)[:] = pairs.transpose(0, 2, 1)
    elif has_pair_products():
        columns_of_panel = halves.view(np.uint32).reshape(count, PANEL, depth // 2)
        panels.view(np.uint32).reshape(count, depth // 2, PANEL)[:] = columns_of_panel.transpose(0, 2, 1)
    else:
        blocks = halves.view(np.uint32).reshape(count, 2, TILE, depth // TILE_DEPTH, TILE_DEPTH // 2)
        shape = (count, depth // TILE_DEPTH, 2, TILE_DEPTH // 2, TILE)
        panels.view(np.uint32).reshape(shape)[:] = blocks.transpose(0, 3, 1, 4, 2)


def allocate_aligned(size: int, number_type: PanelType) -> npt.NDArray[Any]:
    """Returns memory that begins with a line of the cache; the system gives that of a page when it is first written."""
    item = np.dtype(number_type).itemsize
    numbers = np.empty(size + _LINE // item, dtype=number_type)
    first = -numbers.ctypes.data % _LINE // item
    return numbers[first : first + size]


def take_memory(memory: threading.local, name: str, size: int, number_type: PanelType) -> npt.NDArray[Any]:
    """Returns memory for `size` numbers, or more, by name the same for every call of a thread: new memory is slow at
    first.
    """
    numbers: npt.NDArray[Any] | None = getattr(memory, name, None)
    if numbers is None or len(numbers) < size:
        numbers = allocate_aligned(size, number_type)
        setattr(memory, name, numbers)
    return numbers


def take_rounded(memory: threading.local, size: int, num_threads: int, number_type: PanelType) -> Panels:
    """Returns memory in which each thread rounds `size` numbers of rows, whole lines of the cache."""
    size = num_threads * round_up(size)
    return take_memory(memory, "rounded", size, number_type)[:size]


def allocate_weights(size: int, number_type: PanelType) -> npt.NDArray[Any]:
    """Returns the same in huge pages, where the system has some and there are numbers to fill half of one."""
    item = np.dtype(number_type).itemsize
    if size * item < _FEWEST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return allocate_aligned(size, number_type)
    numbers = np.frombuffer(map_huge_pages(size * item + 2 * _HUGE_PAGE), dtype=number_type)
    first = -numbers.ctypes.data % _HUGE_PAGE // item
    return numbers[first : first + size]

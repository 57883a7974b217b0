"""Loops over nodes and table entries, compiled: the one door to Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """`function` as machine code, kept on disk between runs. It may use numbers, NumPy arrays and tuples of them."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))

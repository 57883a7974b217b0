"""Loops over nodes and table entries, compiled: the one door to Numba."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent


def compiled(function: F) -> F:
    """`function` as machine code, kept on disk between runs. It may use numbers, NumPy arrays and tuples of them."""
    with _cached_apart():
        return cast(F, numba.njit(cache=True, nogil=True)(function))


@cache
def _sources() -> str:
    """A name for these very sources.

    Numba compiles anew what has changed in a function's own file; code that it took in from another file stays as it
    was. So what is kept belongs to all sources together.
    """
    digest = blake2b(digest_size=8)
    for source in sorted(_HERE.rglob("*.py")):
        digest.update(source.read_bytes())
    return f"compiled-{digest.hexdigest()}"


@contextmanager
def _cached_apart() -> Iterator[None]:
    """What is defined meanwhile has a cache of its own; if that cannot be written, the one Numba falls back to."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(Path(before or _HERE / "__pycache__") / _sources())
    try:
        yield
    finally:
        config.CACHE_DIR = before

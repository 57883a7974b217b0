"""Compiles loops over nodes and table entries with Numba, and caches the machine code on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

SOURCE_FOLDER = Path(__file__).parent
"""The machine code belongs to all sources below this folder."""


def compiled(function: F) -> F:
    """Compiles `function`, which may use numbers, NumPy arrays and tuples of them, and caches the result on disk."""
    with _separate_cache():
        # nogil: other threads run Python meanwhile
        return cast(F, numba.njit(cache=True, nogil=True)(function))


@cache
def hash_sources() -> str:
    """Returns the name of the cache folder for the present sources.

    Numba compiles a function again when its own file has changed, not when a file has changed from which it inlined
    code. So the cache belongs to all sources together.
    """
    digest = blake2b(digest_size=8)
    # sorted: the order of a directory listing differs between machines
    for source in sorted(SOURCE_FOLDER.rglob("*.py")):
        digest.update(source.read_bytes())
    return f"compiled-{digest.hexdigest()}"


def is_cache_filled() -> bool:
    """Returns whether something was compiled for the present sources before: then little is left to compile."""
    return any(_cache_folder().rglob("*.nbi"))


def _cache_folder() -> Path:
    config: Any = numba.config
    return Path(config.CACHE_DIR or SOURCE_FOLDER / "__pycache__") / hash_sources()


@contextmanager
def _separate_cache() -> Iterator[None]:
    """Gives functions defined meanwhile a cache for these sources; where it cannot be written, Numba's default."""
    config: Any = numba.config
    before = config.CACHE_DIR
    # Numba reads the setting when a function is defined, not when it is compiled
    config.CACHE_DIR = str(_cache_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before

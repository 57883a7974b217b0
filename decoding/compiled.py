"""Compiles loops over nodes and table entries with Numba, and caches the machine code on disk.

Numba may be absent: then this module loads, as do those with compiled loops, and a loop that is called raises. What
decodes without drafts has another way; the rest asks `explain_no_numba` before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

try:
    import numba
except ImportError as error:
    numba = None  # type: ignore[assignment]
    _IMPORT_ERROR = str(error)

F = TypeVar("F", bound=Callable[..., Any])

SOURCE_FOLDER = Path(__file__).parent
"""The machine code belongs to all sources below this folder."""


class NumbaMissing(RuntimeError):
    """A loop was called that Numba would have compiled."""


def explain_no_numba() -> str | None:
    """Returns why Numba compiles nothing here and how to install it, or None where it does."""
    if numba is not None:
        return None
    return f"Numba cannot be imported ({_IMPORT_ERROR}); pip install 'reason-search[full]' installs it"


def compiled(function: F) -> F:
    """Compiles `function`, which may use numbers, NumPy arrays and tuples of them, and caches the result on disk.

    Without Numba the result raises NumbaMissing when it is called.
    """
    if numba is None:

        def refuse_call(*_: object) -> None:
            raise NumbaMissing(f"{function.__qualname__} is compiled: {explain_no_numba()}")

        return cast(F, refuse_call)
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


def is_compiled_ahead(loops: str) -> bool:
    """Returns whether these loops were noted as compiled for the present sources; without Numba none need be."""
    return numba is None or _find_note(loops).exists()


def note_compiled(loops: str) -> None:
    """Notes beside the machine code that these loops are compiled; does nothing where that cannot be written.

    `loops` is any name that a file may have.
    """
    with suppress(OSError):
        _find_note(loops).parent.mkdir(parents=True, exist_ok=True)
        _find_note(loops).touch()


def _find_note(loops: str) -> Path:
    return _cache_folder() / f"{loops}.compiled"


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

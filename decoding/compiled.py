"""Compiles loops over nodes and table entries with Numba, and caches the machine code on disk.

Numba may be absent: then this module loads, as do those with compiled loops, and a loop that is called raises. What
decodes without drafts has another way; the rest asks `explain_no_numba` before anything is loaded.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, update_wrapper
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

log = logging.getLogger("reason.progress")

F = TypeVar("F", bound=Callable[..., Any])

SOURCE_FOLDER = Path(__file__).parent
"""The machine code belongs to all sources below this folder."""

_CACHE_LOCK = threading.Lock()  # engines in several threads may call their first loops at a time
_HOW_TO_INSTALL = "pip install 'reason-search[full]' installs it"


class NumbaMissing(RuntimeError):
    """A loop was called that Numba would have compiled."""


@cache
def explain_no_numba() -> str | None:
    """Returns why Numba compiles nothing here and how to install it, or None where it does.

    Imports Numba, which takes a quarter of a second.
    """
    try:
        _import_numba()
    except ImportError as error:
        return f"Numba cannot be imported ({error}); {_HOW_TO_INSTALL}"
    return None


def explain_absent_numba() -> str | None:
    """Returns the same without an import: a Numba that is installed and broken is not noticed."""
    missing = [name for name in ("numba", "llvmlite") if importlib.util.find_spec(name) is None]
    return f"{missing[0]} is not installed; {_HOW_TO_INSTALL}" if missing else None


class CompiledLoop:
    """A function that Numba compiles for the arguments of each call, or of a call from another one.

    Numba is imported for the first call: the settings of drafters are checked without it.
    """

    def __init__(self, function: Callable[..., Any], *, allocates: bool = True) -> None:
        update_wrapper(self, function)
        self._function, self._allocates = function, allocates

    def __call__(self, *args: object) -> Any:
        return self.dispatcher(*args)

    @cached_property
    def dispatcher(self) -> Any:
        """What Numba makes of the function. Raises: NumbaMissing."""
        if (reason := explain_no_numba()) is not None:
            raise NumbaMissing(f"{self._function.__qualname__} is compiled: {reason}")
        with _CACHE_LOCK, _separate_cache():
            # nogil: other threads run Python meanwhile; _nrt: whether references to arrays are counted; C calls none
            options = {"nogil": True, "_nrt": self._allocates, "no_cfunc_wrapper": True}
            return _import_numba().njit(cache=True, **options)(self._function)


def compiled(function: F) -> F:
    """Compiles `function`, which may use numbers, NumPy arrays and tuples of them, and caches the result on disk.

    Without Numba the result raises NumbaMissing when it is called.
    """
    return cast(F, CompiledLoop(function))


def compiled_in_place(function: F) -> F:
    """Compiles, as `compiled` does, a function that makes and returns no array, nor do those that it calls.

    Numba counts no references in it: with them a call that passes on ten arrays takes a tenth of a microsecond longer,
    which is as long as it takes to update an entry of an n-gram table. Slices are no arrays of their own. Compiling a
    function that does make an array fails.
    """
    return cast(F, CompiledLoop(function, allocates=False))


@cache
def _import_numba() -> Any:
    """Returns Numba, which from then on compiles a loop that another one calls. Raises: ImportError."""
    import numba
    from numba.extending import typeof_impl

    typeof_impl.register(CompiledLoop)(lambda loop, _: numba.types.Dispatcher(loop.dispatcher))
    return numba


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
    return explain_no_numba() is not None or _find_note(loops).exists()


def note_compiled(loops: str) -> None:
    """Notes beside the machine code that these loops are compiled; does nothing where that cannot be written.

    `loops` is any name that a file may have.
    """
    with suppress(OSError):
        _find_note(loops).parent.mkdir(parents=True, exist_ok=True)
        _find_note(loops).touch()


@contextmanager
def compiling_once(what: str, loops: str) -> Iterator[None]:
    """Says that `what` is compiled, and notes its loops afterwards, unless they were compiled ahead."""
    is_first = not is_compiled_ahead(loops)
    if is_first:
        log.info("compiling %s for this machine, once ...", what)
    yield
    if is_first:
        note_compiled(loops)


def _find_note(loops: str) -> Path:
    return _cache_folder() / f"{loops}.compiled"


def _cache_folder() -> Path:
    config: Any = _import_numba().config
    return Path(config.CACHE_DIR or SOURCE_FOLDER / "__pycache__") / hash_sources()


@contextmanager
def _separate_cache() -> Iterator[None]:
    """Gives functions defined meanwhile a cache for these sources; where it cannot be written, Numba's default."""
    config: Any = _import_numba().config
    before = config.CACHE_DIR
    # Numba reads the setting when a function is defined, not when it is compiled
    config.CACHE_DIR = str(_cache_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before

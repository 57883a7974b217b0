"""Has another process compile the loops of drafts, while this one loads a model and compiles its layers.

Numba compiles one loop at a time in a process. What it has compiled is in a cache on disk, where the other process
finds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from decoding.compiled import is_compiled_ahead, note_compiled

LOOPS = "drafts-of-any-model"
ENDED = f"{LOOPS}-ended"
"""What is noted as compiled (`note_compiled`) when the process starts, and when it has ended."""

_PROGRAM = f"from {__package__}.compile_beside import compile_drafts; compile_drafts()"
TIMEOUT_S = 120.0
"""Seconds after which the process counts as ended."""


@dataclass
class _Beside:
    """The process that was started, if any.

    end         time after which it counts as ended, whatever it does
    is_awaited  as in `start_compiling_drafts`
    """

    process: subprocess.Popen[bytes] | None = None
    end: float = 0.0
    is_awaited: bool = True


_beside = _Beside()


def start_compiling_drafts(cores: int, *, is_awaited: bool = True) -> None:
    """Compiles the loops of `speculation=stand` in another process, at the first start with these sources.

    Not with a single core. The process ends by itself, and goes on where this one ends before. `is_awaited` says
    whether all drafts wait for it; otherwise rounds begin before, without drafts, where that changes no text.
    """
    if cores < 2 or is_compiled_ahead(LOOPS):
        return
    # before it has ended: where it fails, a process that needs the loops compiles them
    note_compiled(LOOPS)
    if not is_compiled_ahead(LOOPS):  # nothing can be written, and so nothing would be found
        return
    with suppress(OSError):  # without a Python to start
        _beside.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # Ctrl-C is for this process
        )
        _beside.end, _beside.is_awaited = time.monotonic() + TIMEOUT_S, is_awaited


def is_compiling_drafts() -> bool:
    """Returns whether a process was started that has not ended, nor been waited for, nor stands still."""
    process = _beside.process
    return process is not None and process.poll() is None and time.monotonic() < _beside.end


def are_drafts_optional() -> bool:
    """Returns whether such a process runs, and rounds may begin without drafts meanwhile."""
    return is_compiling_drafts() and not _beside.is_awaited


def wait_for_drafts() -> None:
    """Waits until the process that was started has ended, or stands still."""
    process, _beside.process = _beside.process, None
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, _beside.end - time.monotonic()))

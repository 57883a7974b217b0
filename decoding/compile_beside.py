"""Compiles the loops of drafts in another process, while this one loads a model and compiles its layers.

Numba compiles one loop at a time in a process. What it has compiled is in a cache on disk, where the other process
finds it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decoding.compiled import is_compiled_ahead, note_compiled

if TYPE_CHECKING:
    from torch import Tensor

    from decoding.model.backend import TokenBatch
    from decoding.model.segments import SegmentTiles
    from decoding.round import Speculation
    from decoding.stats import DecoderKind

LOOPS = "drafts-of-any-model"
ENDED = f"{LOOPS}-ended"
"""What is noted as compiled (`note_compiled`) when the process starts, and when it has ended."""

_PROGRAM = f"from {__name__} import compile_drafts; compile_drafts()"
_LIKELY = 4  # tokens, so that n-grams return
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
        from decoding.threads import watch_core  # here: it imports PyTorch

        watch_core(is_compiling_drafts)


def is_compiling_drafts() -> bool:
    """Returns whether a process was started that has not ended, nor been waited for, nor stands still."""
    process = _beside.process
    return process is not None and process.poll() is None and time.monotonic() < _beside.end


def may_begin_without(loops: str) -> bool:
    """Returns whether rounds may begin before the process has ended, which compiles all of these loops but layers.

    `loops` is a name by `warmup_profile.name_loops`.
    """
    from decoding.warmup_profile import name_loops

    is_optional = is_compiling_drafts() and not _beside.is_awaited
    return is_optional and loops == name_loops(NoModel(), _list_parts())


def wait_for_drafts() -> None:
    """Waits until the process that was started has ended, or stands still."""
    process, _beside.process = _beside.process, None
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, _beside.end - time.monotonic()))


def compile_drafts() -> None:
    """Compiles the loops of rounds with drafts; first a part of the layers, and what rounds without drafts need.

    The process that starts this one needs these before the others, but not before they are compiled: it finds them.
    """
    # here: the process that starts this one does not need them yet
    from decoding.model.compiled_layers import compile_attention
    from decoding.round import Speculation
    from decoding.warmup_profile import compile_loops

    gc.disable()  # a tenth of the time
    compile_attention()
    backend = NoModel()
    for parts in (Speculation(), _list_parts()):
        compile_loops(backend, parts)
    note_compiled(ENDED)


def _list_parts() -> Speculation:
    """Returns the parts of rounds whose loops are compiled: those of `speculation=stand`."""
    from decoding.round import Speculation
    from decoding.speculation.controllers.throughput import ThroughputController
    from decoding.speculation.drafters.stand import Stand
    from decoding.speculation.drafters.tree_drafter import TreeDrafter

    return Speculation(TreeDrafter(Stand()), ThroughputController())


@dataclass(frozen=True)
class NoModel:
    """Implements `Backend` without layers: a few tokens are equally likely everywhere."""

    vocab_size: int = 64
    max_positions: int = 4096
    kv_bytes_per_token: int = 4
    segment_tiles: SegmentTiles | None = None
    decoder_kind: DecoderKind = "compiled"
    attention_seconds: float = 0.0

    def new_kv_pool(self, capacity: int) -> Tensor:
        import torch

        return torch.zeros(capacity + 1)

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        import torch

        return torch.zeros(len(batch.logits_indices), 1)

    def apply_head(self, hidden: Tensor) -> Tensor:
        logits = hidden.new_zeros(len(hidden), self.vocab_size)
        logits[:, _LIKELY:] = -9.0
        return logits

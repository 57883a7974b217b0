"""Compiles the loops of drafts in another process, while this one loads a model and compiles its layers.

Numba compiles one loop at a time in a process. What it has compiled is in a cache on disk, where the other process
finds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decoding.compiled import is_compiled_ahead, note_compiled

if TYPE_CHECKING:
    from torch import Tensor

    from decoding.model.backend import TokenBatch
    from decoding.model.segments import SegmentTiles
    from decoding.stats import DecoderKind

LOOPS = "drafts-of-any-model"
_PROGRAM = f"from {__name__} import compile_drafts; compile_drafts()"
_LIKELY = 4  # tokens, so that n-grams return
_TIMEOUT_S = 120.0

_processes: list[subprocess.Popen[bytes]] = []  # that were started, one at most


def start_compiling_drafts(cores: int) -> None:
    """Compiles the loops of `speculation=stand` in another process, at the first start with these sources.

    Not with a single core. The process ends by itself.
    """
    if cores < 2 or is_compiled_ahead(LOOPS):
        return
    # before it has ended: where it fails, a process that needs the loops compiles them
    note_compiled(LOOPS)
    if not is_compiled_ahead(LOOPS):  # nothing can be written, and so nothing would be found
        return
    with suppress(OSError):  # without a Python to start
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # Ctrl-C is for this process
        )
        _processes.append(process)


def is_compiling_drafts() -> bool:
    """Returns whether a process was started that has not been waited for."""
    return bool(_processes)


def wait_for_drafts() -> None:
    """Waits until the process that was started has ended, or stands still."""
    while _processes:
        with suppress(subprocess.TimeoutExpired):
            _processes.pop().wait(_TIMEOUT_S)


def compile_drafts() -> None:
    """Compiles the loops of rounds with drafts, those of layers excepted."""
    # here: the process that starts this one does not need them yet
    from decoding.round import Speculation
    from decoding.speculation.controllers.throughput import ThroughputController
    from decoding.speculation.drafters.stand import Stand
    from decoding.speculation.drafters.tree_drafter import TreeDrafter
    from decoding.warmup_profile import compile_loops

    compile_loops(_NoModel(), Speculation(TreeDrafter(Stand()), ThroughputController()))


@dataclass(frozen=True)
class _NoModel:
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

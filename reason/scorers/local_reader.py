"""A reward model's parts as a Reader: the engine's own forward and prefix cache, with the reward model's head.

Imports torch: import this module inside functions only.
"""

from __future__ import annotations

from typing import NamedTuple

from decoding.core import Tokens
from decoding.kv.slots import PagePool
from decoding.model.fused_decoder import FAMILIES
from decoding.model.transformers_checkpoint import HFBackend, pick_device, pick_dtype
from decoding.prefill import PrefixReader
from reason.scorers.base import HeadKind
from reason.scorers.formats.expectation import ExpectationReader, log_ratio, statistics
from reason.scorers.heads import open_config, open_parts


class Opened(NamedTuple):
    """A reader, and the longest sequence its cache and its model have room for."""

    reader: PrefixReader | ExpectationReader
    room: int


def open_reader(source: str, kind: HeadKind, words: Tokens, *, device: str, dtype: str, kv_mib: int) -> Opened:
    """The reader for the checkpoint at `source`. `kind` and `words` as in `heads.open_parts`.

    Raises: ValueError for a family the engine does not run (before weights are loaded), for a device that is not
    there, for a cache too small for one token, or for a checkpoint that does not fit `kind`.
    """
    family = open_config(source).model_type
    if family not in FAMILIES:
        raise ValueError(f"{source} is a {family} model; a reward model may be {', '.join(FAMILIES)} or mistral")
    place = pick_device(device)
    parts = open_parts(source, kind, words, dtype=pick_dtype(dtype, place))
    backend = HFBackend(parts.trunk, head=parts.head.to(place), device=device, dtype=dtype)
    kv_bytes = kv_mib << 20
    room = min(backend.max_positions, PagePool.of_bytes(kv_bytes, backend.page_bytes).capacity)
    reader = PrefixReader(backend, kv_bytes=kv_bytes)
    measure = {"next_token": log_ratio, "token_statistics": statistics}.get(kind)
    return Opened(reader if measure is None else ExpectationReader(reader, measure), room)

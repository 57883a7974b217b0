"""Opens a reward model in this process: the engine's own forward pass and prefix cache, with the reward model's head.

Imports torch: import this module inside functions only.
"""

from __future__ import annotations

from typing import NamedTuple

from decoding.core import Tokens
from decoding.kv.out_of_memory import MEMORY_ERRORS, is_out_of_memory
from decoding.kv.slots import SlotPool
from decoding.model.device_choice import pick_device, pick_dtype
from decoding.model.families import FAMILIES
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from reason.scorers.head_modules import read_family
from reason.scorers.heads import ClosableReader, RewardHead


class OpenedReader(NamedTuple):
    """A reader, and the lengths of the longest sequences for which its model and its cache have room."""

    reader: ClosableReader
    max_positions: int
    num_slots: int


def open_local_reader(
    source: str,
    head: RewardHead,
    label_token_ids: Tokens,
    *,
    device: str,
    dtype: str,
    kv_mib: int,
    numerics: str = "fast",
) -> OpenedReader:
    """Returns the reader for the checkpoint at `source`; `label_token_ids` as in `base.PrmAdapter`.

    Raises: ValueError for a family the engine does not run (before weights are loaded), for a device that is not
    there or has no memory for it, for a cache too small for one token, or for a checkpoint without this head.
    """
    family = read_family(source)
    if family not in FAMILIES:
        raise ValueError(f"{source} is a {family} model; a reward model may be {', '.join(FAMILIES)} or mistral")
    try:
        return _open_reader(
            source, head, label_token_ids, device=device, dtype=dtype, kv_bytes=kv_mib << 20, numerics=numerics
        )
    except MEMORY_ERRORS as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(
            f"kv_mib={kv_mib} and the weights of {source} do not fit the memory of device={device}; set a smaller "
            f"kv_mib or device=cpu ({error})"
        ) from error


def _open_reader(
    source: str,
    head: RewardHead,
    label_token_ids: Tokens,
    *,
    device: str,
    dtype: str,
    kv_bytes: int,
    numerics: str,
) -> OpenedReader:
    place = pick_device(device)
    head_dtype = pick_dtype(dtype, place)
    parts = head.load_parts(source, label_token_ids, head_dtype)
    own_head = parts.head.to(place, head_dtype)
    backend = HFBackend(parts.trunk, head=own_head, device=device, dtype=dtype, numerics=numerics, frees_model=True)
    num_slots = SlotPool.from_budget(kv_bytes, backend.kv_bytes_per_token).capacity
    reader = PrefillEngine(backend, kv_bytes=kv_bytes, reducer=head.make_reducer())
    return OpenedReader(reader, backend.max_positions, num_slots)

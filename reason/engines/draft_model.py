"""The draft model for a checkpoint: a small writer that guesses for a large one of the same vocabulary."""

from __future__ import annotations

from typing import Any

from decoding.model.transformers_checkpoint import Device, DType, HFBackend
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.validation import is_count
from reason.models.checkpoint import find_model, load_tokenizer
from reason.models.vocabulary import check_same_vocabulary


def draft_source(
    path: str,
    *,
    writer: Any = None,
    writer_path: str = "the writer",
    device: Device = "auto",
    dtype: DType = "auto",
    kv_mib: int = 256,
    max_rows: int = 1024,
    max_running: int = 256,
    k: int = 10,
) -> DraftModel:
    """A `DraftModel` over the checkpoint at `path`: a folder, a hub id or bundled:NAME.

    writer       tokenizer of the model that is drafted for, whose vocabulary must be the same; None to trust it is
    writer_path  what to call that model in an error
    kv_mib       size of the KV pool in MiB

    Raises: ValueError for a wrong setting, a model that cannot be had or run, or another vocabulary.
    """
    if not is_count(kv_mib, at_least=1):
        raise ValueError(f"kv_mib must be an int >= 1, got {kv_mib!r}")
    source = find_model(path, key="speculation.path").source
    ours = load_tokenizer(source).get_vocab()
    if writer is not None:
        check_same_vocabulary(path, ours, writer_path, writer.get_vocab())
    return DraftModel(
        HFBackend.load(source, device=device, dtype=dtype),
        k=k,
        kv_bytes=kv_mib << 20,
        max_rows=max_rows,
        max_running=max_running,
        vocab_size=max(ours.values()) + 1,
    )

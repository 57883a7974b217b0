"""The embedded engine for a checkpoint: backend, tokenizer and pool put together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from decoding.engine import LocalEngine
from decoding.model.transformers_checkpoint import Device, DType, HFBackend
from decoding.round import Speculation
from decoding.speculation.controllers.cost_curve import Paced
from decoding.speculation.controllers.warmup_profile import rehearse
from decoding.speculation.drafters.none import NoDraft
from decoding.validation import is_count
from reason.models.checkpoint import eos_ids, load_tokenizer


def local_engine(
    path: str,
    *,
    tokenizer: Any = None,
    device: Device = "auto",
    dtype: DType = "auto",
    kv_mib: int = 1024,
    max_running: int = 256,
    max_rows: int = 1024,
    speculation: Callable[[Any, str], Speculation] | None = None,
) -> LocalEngine:
    """A `LocalEngine` over the checkpoint at `path` (a folder or a hub name).

    tokenizer   the checkpoint's own unless given; used to decode for stop strings and to know end tokens
    kv_mib      size of the KV pool in MiB
    speculation makes the speculative parts for this tokenizer and path; plain decoding by default

    Raises: ValueError for a wrong setting or an unsupported model.
    """
    if not is_count(kv_mib, at_least=1):
        raise ValueError(f"kv_mib must be an int >= 1, got {kv_mib!r}")
    tokenizer = tokenizer or load_tokenizer(path)
    backend = HFBackend.load(path, device=device, dtype=dtype)
    parts = speculation(tokenizer, path) if speculation else Speculation()
    if isinstance(parts.controller, Paced) and not isinstance(parts.drafter, NoDraft):
        with ThreadPoolExecutor(1) as aside:  # the caller's thread may run an event loop
            parts.controller.pace(aside.submit(rehearse, backend).result())
    return LocalEngine(
        backend,
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
        eos_ids=eos_ids(path, tokenizer),
        kv_bytes=kv_mib << 20,
        max_running=max_running,
        max_rows=max_rows,
        speculation=parts,
    )

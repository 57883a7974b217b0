"""Derives the seeds of branches, equal on every machine and in every run."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Derives a 63-bit seed from ints and strings; order and type matter.

    >>> derive_seed(0, "p1", 3) == derive_seed(0, "p1", 3) != derive_seed(0, "p1", 4)
    True
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

"""Saves n-gram tables to files and reads them again, so that a run begins with what earlier ones have learned.

A file has the entries of one table, the oldest first, as safetensors: no code is run when it is read. Its metadata say
for which model and vocabulary it was learned, and have a digest of the arrays.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from decoding.speculation.drafters.ngram_table import NGramTable, SavedEntries

FORMAT = "n-gram table, version 1"
SUFFIX = ".safetensors"


class TableOrigin(NamedTuple):
    """What a table belongs to: the name of the model, and a digest of its vocabulary."""

    model: str
    vocabulary: str


def save_table(table: NGramTable, file: Path, origin: TableOrigin) -> None:
    """Writes the entries of a table; a kill in between leaves the file as it was. Raises: OSError."""
    arrays = table.save_entries()._asdict()
    about = {"format": FORMAT, **origin._asdict(), "digest": _digest_arrays(arrays)}
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    partial.write_bytes(save(arrays, about))
    partial.replace(file)


def load_table(table: NGramTable, file: Path, origin: TableOrigin, decay: float = 1.0) -> None:
    """Adds the entries of a file to a table, which counts `decay` times the observations of each. *Mutates* `table`.

    With `decay` below 1 it may be of another model with the same vocabulary.

    Raises: ValueError for a file that is no table, is broken, or belongs to another model, vocabulary or table.
    """
    try:
        with safe_open(file, framework="numpy") as saved:
            about = saved.metadata() or {}
            arrays = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118  # it is no dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is no table: {error}") from error
    if about.get("format") != FORMAT:
        raise ValueError(f"{file} is no {FORMAT}, but {about.get('format', 'something else')}")
    for name, here in origin._asdict().items():
        if about.get(name) != here and not (name == "model" and decay < 1):
            raise ValueError(f"{file} was learned with another {name}: {about.get(name)}, and here it is {here}")
    if set(arrays) != set(SavedEntries._fields) or about.get("digest") != _digest_arrays(arrays):
        raise ValueError(f"{file} is broken: its contents do not match their digest")
    table.add_entries(SavedEntries(**arrays), decay)


def _digest_arrays(arrays: dict[str, npt.NDArray[np.generic]]) -> str:
    digest = blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

"""Writes n-gram tables to files and reads them again.

A file has the entries of one table, the oldest first, as safetensors: no code is run when it is read. Its metadata say
for which weights and vocabulary it was learned, which tables are in it, and have a digest of the arrays.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from decoding.speculation.drafters.ngram_table import SavedEntries

FORMAT = "n-gram table, version 3"
SUFFIX = ".safetensors"
PARTIAL = ".partial"


class TableOrigin(NamedTuple):
    """What a table belongs to: digests of the model's weights and of its vocabulary, and its name, for messages."""

    model: str
    weights: str
    vocabulary: str


@dataclass(frozen=True)
class TableContents:
    """A table as its file has it.

    id        of these contents: a file that is written again has another one
    replaces  ids of the tables that were merged to this one
    epoch     number of the weights that it was learned with: one more with each change of weights
    written   nanoseconds since 1970
    """

    id: str
    origin: TableOrigin
    replaces: frozenset[str]
    epoch: int
    written: int
    entries: SavedEntries


def write_table(file: Path, contents: TableContents) -> None:
    """Writes a table; a kill in between leaves the file as it was. Raises: OSError."""
    arrays = contents.entries._asdict()
    about = {
        "format": FORMAT,
        "id": contents.id,
        "replaces": json.dumps(sorted(contents.replaces)),
        "epoch": str(contents.epoch),
        "written": str(contents.written),
        **contents.origin._asdict(),
        "digest": _digest_arrays(arrays),
    }
    partial = file.with_name(f"{file.name}.{os.getpid()}{PARTIAL}")
    partial.write_bytes(save(arrays, about))
    partial.replace(file)


def read_table(file: Path) -> TableContents:
    """Reads a table.

    Raises: FileNotFoundError for a file that is gone; ValueError for one that is no table of this version or is broken.
    """
    try:
        with safe_open(file, framework="numpy") as saved:
            about = saved.metadata() or {}
            arrays = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118  # it is no dict
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        # a network file system says so of a file that another machine has replaced
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            raise FileNotFoundError(error.errno, str(error)) from error
        raise ValueError(f"{file} is no table: {error}") from error
    if about.get("format") != FORMAT:
        raise ValueError(f"{file} is no {FORMAT}, but {about.get('format', 'something else')}")
    if set(arrays) != set(SavedEntries._fields) or about.get("digest") != _digest_arrays(arrays):
        raise ValueError(f"{file} is broken: its contents do not match their digest")
    try:
        return TableContents(
            about["id"],
            TableOrigin(about["model"], about["weights"], about["vocabulary"]),
            frozenset(json.loads(about["replaces"])),
            int(about["epoch"]),
            int(about["written"]),
            SavedEntries(**arrays),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is broken: {type(error).__name__} in what it says of itself: {error}") from error


def _digest_arrays(arrays: dict[str, npt.NDArray[np.generic]]) -> str:
    digest = blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

"""Keeps what a drafter has learned in a folder, from run to run and from replica to replica.

An engine reads all tables of the folder when it starts. It leaves one of its own, with what it has read, and then
removes those that it has read. Replicas that run at once leave a table each, and the next one reads both.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they import Numba and safetensors, which only engines that remember need
    from decoding.speculation.drafters.ngram_table import NGramTable
    from decoding.speculation.drafters.table_file import TableOrigin

log = logging.getLogger("reason.progress")


@dataclass(frozen=True)
class TableMemory:
    """A folder of tables.

    decay  weight of what is read over what is learned now. Below 1, tables of other models with the same vocabulary are
           read too: those of the same model before it was trained further

    Raises: ValueError for a folder that is a file.
    """

    folder: Path
    decay: float = 1.0

    def __post_init__(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"remember must be a folder, {self.folder} is a file")

    def open_table(self, table: NGramTable, origin: TableOrigin) -> KeptTable:
        """Adds all tables of the folder to `table`, and returns what saves it there. *Mutates* `table`.

        Raises: ValueError for a file that cannot be used; the folder stays as it is.
        """
        from decoding.speculation.drafters.table_file import SUFFIX, load_table

        files = sorted(self.folder.glob(f"*{SUFFIX}"))
        for file in files:
            try:
                load_table(table, file, origin, self.decay)
            except ValueError as error:
                raise ValueError(f"{error}; remove the file, or name another folder") from error
        if files:
            log.info("drafts begin with %s contexts of %s", f"{len(table):,}", self.folder)
        own_file = self.folder / f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}{SUFFIX}"
        return KeptTable(table, origin, own_file, files)


@dataclass(frozen=True)
class KeptTable:
    """A table that is saved to its own file, as often as asked; `begun_with` are the files that it has read."""

    table: NGramTable
    origin: TableOrigin
    file: Path
    begun_with: Sequence[Path]

    def save(self) -> None:
        """Writes the table, then removes those that it was begun with. A failure is a warning."""
        from decoding.speculation.drafters.table_file import save_table

        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            save_table(self.table, self.file, self.origin)
            for old in self.begun_with:
                old.unlink(missing_ok=True)  # another replica may have begun with it too
        except OSError as error:
            log.warning("the table of drafts is not saved: %s", error)


def make_origin(model: str, vocabulary: Mapping[str, int]) -> TableOrigin:
    """Returns what tables of this model belong to."""
    from decoding.speculation.drafters.table_file import TableOrigin

    text = json.dumps(sorted(vocabulary.items(), key=lambda item: item[1]), ensure_ascii=True)
    return TableOrigin(model, blake2b(text.encode(), digest_size=16).hexdigest())

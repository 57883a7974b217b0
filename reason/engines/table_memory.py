"""Keeps what a drafter has learned in a folder, from run to run and from replica to replica.

Each engine reads all tables of the folder when it starts, and writes one when it ends: its own, with what it has read.
It then removes those that it has read. Replicas that run at once leave a table each, and the next engine reads both.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from reason.config.errors import ConfigError

if TYPE_CHECKING:  # they import Numba and safetensors, which only engines that remember need
    from decoding.speculation.drafters.ngram_table import NGramTable
    from decoding.speculation.drafters.table_file import TableOrigin

log = logging.getLogger("reason.progress")


@dataclass(frozen=True)
class TableMemory:
    """The settings `speculation.remember`, a folder, and `speculation.remember_decay`.

    decay  weight of what is read over what is learned now. Below 1, tables of other models with the same vocabulary are
           read too: those of the same model before it was trained further

    Raises: ValueError for a folder that is a file.
    """

    folder: Path
    decay: float = 1.0
    _files: list[Path] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"remember must be a folder, {self.folder} is a file")

    def load_tables(self, table: NGramTable, origin: TableOrigin) -> None:
        """Adds all tables of the folder to `table`. *Mutates* it.

        Raises: ConfigError for a file that cannot be used; the folder stays as it is.
        """
        from decoding.speculation.drafters.table_file import SUFFIX, load_table

        for file in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                load_table(table, file, origin, self.decay)
            except ValueError as error:
                raise ConfigError(f"speculation.remember: {error}; remove the file, or name another folder") from error
            self._files.append(file)
        if self._files:
            log.info("drafts begin with %s contexts of speculation.remember=%s", f"{len(table):,}", self.folder)

    def save_tables(self, table: NGramTable, origin: TableOrigin) -> None:
        """Writes the table, then removes those that it was begun with. An engine that fails to is not held up."""
        from decoding.speculation.drafters.table_file import SUFFIX, save_table

        file = self.folder / f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}{SUFFIX}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_table(table, file, origin)
            for old in self._files:
                old.unlink(missing_ok=True)  # another replica may have begun with it too
        except OSError as error:
            log.warning("speculation.remember: the table is not saved: %s", error)


def make_origin(model: str, vocabulary: Mapping[str, int]) -> TableOrigin:
    """Returns what tables of this model belong to."""
    from decoding.speculation.drafters.table_file import TableOrigin

    text = json.dumps(sorted(vocabulary.items(), key=lambda item: item[1]), ensure_ascii=True)
    return TableOrigin(model, blake2b(text.encode(), digest_size=16).hexdigest())

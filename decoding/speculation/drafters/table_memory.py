"""Keeps what a drafter has learned in a folder, from run to run and from replica to replica.

An engine begins with all tables of the folder, and leaves one with what it has learned itself (see `table_folder`).
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
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from decoding.model.weights_digest import digest_weights

if TYPE_CHECKING:  # they import Numba and safetensors, which only engines that remember need
    from decoding.speculation.drafters.ngram_table import NGramTable, SavedEntries
    from decoding.speculation.drafters.table_file import TableOrigin

log = logging.getLogger("reason.progress")

_MAX_ENTRIES = 4_000_000  # of a file


class EarlierTables(NamedTuple):
    """What an engine begins with: tables with their weights, the oldest first, and the epoch of the engine."""

    tables: list[tuple[SavedEntries, float]]
    epoch: int

    def add_to(self, table: NGramTable) -> None:
        """Adds the tables to another one. *Mutates* it."""
        for entries, weight in self.tables:
            table.add_entries(entries, weight)


@dataclass(frozen=True)
class TableMemory:
    """A folder of tables.

    decay  weight of what was learned with the weights before, once for each change of weights since. Below 1, tables of
           other weights with the same vocabulary are read: those of the same model before it was trained further

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
        return self.begin_table(table, origin, self.read_earlier(table, origin))

    def read_earlier(self, table: NGramTable, origin: TableOrigin) -> EarlierTables:
        """Returns the tables of the folder, of which it makes one file, for a table of this shape. *Mutates* it.

        Raises: as `open_table`.
        """
        from decoding.speculation.drafters.table_folder import merge_tables, read_tables

        try:
            merge_tables(self.folder, origin, self.decay, table.new_empty(_MAX_ENTRIES))
        except OSError as error:  # they are read one by one
            log.debug("the tables of %s are not merged: %s", self.folder, error)
        read = read_tables(self.folder, origin, self.decay, table)
        same_weights = [earlier.epoch for earlier in read if earlier.origin.weights == origin.weights]
        epoch = max(same_weights) if same_weights else 1 + max((earlier.epoch for earlier in read), default=0)
        return EarlierTables(
            [(earlier.entries, self.decay ** max(0, epoch - earlier.epoch)) for earlier in read], epoch
        )

    def begin_table(self, table: NGramTable, origin: TableOrigin, earlier: EarlierTables) -> KeptTable:
        """Adds what was read to `table`, and returns what saves it. *Mutates* `table`."""
        earlier.add_to(table)
        if earlier.tables:
            log.info("drafts begin with %s contexts of %s", f"{len(table):,}", self.folder)
        return KeptTable(table, origin, self.folder, earlier.epoch)


@dataclass
class KeptTable:
    """Saves what a table learns from now on, without what was read, as often as asked."""

    table: NGramTable
    origin: TableOrigin
    folder: Path
    epoch: int
    _file: Path = field(init=False)
    _learned: NGramTable = field(init=False)
    _is_written: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        from decoding.speculation.drafters.table_file import SUFFIX

        self._file = self.folder / f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}{SUFFIX}"
        self._learned = self.table.new_empty(_MAX_ENTRIES)
        self.table.increments = self.table.new_empty(_MAX_ENTRIES)

    def save(self) -> None:
        """Writes what was learned since the start to this engine's file, in its place. A failure is a warning."""
        from decoding.speculation.drafters.table_folder import LocksNotSupported, lock_folder

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with lock_folder(self.folder):
                    self._write_file()
            except LocksNotSupported:  # then no other engine merges this file meanwhile
                self._write_file()
        except OSError as error:
            log.warning("the table of drafts is not saved: %s", error)

    def _write_file(self) -> None:
        from decoding.speculation.drafters.table_file import TableContents, write_table

        increments = self.table.increments
        assert increments is not None
        if self._is_written and self._is_merged():
            self._learned, self._is_written = self.table.new_empty(_MAX_ENTRIES), False
        self._learned.add_entries(increments.save_entries())
        self.table.increments = self.table.new_empty(_MAX_ENTRIES)
        entries = self._learned.save_entries()
        contents = TableContents(uuid4().hex, self.origin, frozenset(), self.epoch, time.time_ns(), entries)
        write_table(self._file, contents)
        self._is_written = True

    def _is_merged(self) -> bool:
        """Whether another engine has merged this one's file, so that all that was written is in another file."""
        try:
            self._file.open("rb").close()  # network file systems may know of `exists` what was true some seconds ago
        except FileNotFoundError:
            return True
        return False


def make_origin(source: str, vocabulary: Mapping[str, int], revision: str | None = None) -> TableOrigin:
    """Returns what tables of the model at `source`, a folder or a hub id, belong to."""
    from decoding.speculation.drafters.table_file import TableOrigin

    text = json.dumps(sorted(vocabulary.items(), key=lambda item: item[1]), ensure_ascii=True)
    digest = blake2b(text.encode(), digest_size=16).hexdigest()
    return TableOrigin(Path(source).name, digest_weights(source, revision), digest)

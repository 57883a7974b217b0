"""A folder of tables that several engines, on several machines, read and write at once: each observation counts once.

A file has what one engine has learned itself, or is the sum of several such files. An engine that starts makes one file
of all. To keep that exact at any moment, and after a kill at any moment:

- Files are written and merged under the lock of the folder; they are read without it.
- A merged file names the tables that are in it. One of those that is still there is not read.
- Before a file is merged it gets another name. Its engine sees at its next save that it is gone, and begins a new one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.table_file import (
    PARTIAL,
    SUFFIX,
    TableContents,
    TableOrigin,
    read_table,
    write_table,
)

_LOCK = ".lock"
LOCK_WAIT_S = 10.0  # an engine that saves stands still meanwhile
_PAUSE_S = 0.05
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_MAX_READS = 100  # the names in a folder change when an engine saves for the first time, or starts


class LocksNotSupported(OSError):
    """The file system of a folder has no locks; so no engine merges tables there."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other engines from writing tables. The system takes the lock from a process that ends.

    Raises: LocksNotSupported; TimeoutError, an OSError too, while another engine keeps it; OSError.
    """
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        until = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise TimeoutError(f"another engine has locked {folder}") from None
                time.sleep(_PAUSE_S)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    raise LocksNotSupported(error.errno, f"{folder} cannot be locked: {error.strerror}") from error
                raise
        yield
    finally:
        os.close(lock)


def read_tables(folder: Path, origin: TableOrigin, decay: float, table: NGramTable) -> list[TableContents]:
    """Returns what `table` may take of a folder, the oldest first, each observation once.

    With `decay` below 1 it may be of other weights with the same vocabulary.

    Raises: ValueError for a file that is no table, is broken, or belongs to another model, vocabulary or shape.
    """
    return _without_merged(list(_read_files(folder, origin, decay, table).values()))


def merge_tables(folder: Path, origin: TableOrigin, decay: float, merged: NGramTable) -> None:
    """Makes one file of all tables of a folder, by means of an empty table. *Mutates* it, and the folder.

    Tables of older weights count `decay` times for each change of weights since.

    Raises: OSError where the folder cannot be locked or written; ValueError as `read_tables`, and then it stays as it
    is.
    """
    if len(_list_files(folder)) < 2:
        return
    with lock_folder(folder):
        tables = _read_files(folder, origin, decay, merged)
        counted = _without_merged(list(tables.values()))
        if len(tables) < 2:
            return
        newest = counted[-1]
        for table in counted:
            merged.add_entries(table.entries, decay ** (newest.epoch - table.epoch))
        renamed = []
        for file, table in tables.items():
            renamed.append(file.with_name(f"{table.id}{SUFFIX}"))
            file.rename(renamed[-1])
        # also those that were in another one: should they stay, they are in this one
        replaces = frozenset(table.id for table in tables.values())
        contents = TableContents(
            uuid4().hex, newest.origin, replaces, newest.epoch, newest.written, merged.save_entries()
        )
        write_table(folder / f"{contents.id}{SUFFIX}", contents)
        # nothing is written while the folder is locked: they are of engines that were killed
        for file in (*renamed, *folder.glob(f"*{PARTIAL}")):
            file.unlink(missing_ok=True)


def _list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def _read_files(folder: Path, origin: TableOrigin, decay: float, table: NGramTable) -> dict[Path, TableContents]:
    """Returns all tables of a folder at one moment, also while other engines save and merge."""
    for _ in range(_MAX_READS):
        files = _list_files(folder)
        try:
            read = {file: _read_checked(file, origin, decay, table) for file in files}
        except FileNotFoundError:  # it was merged meanwhile: the merged file is there now
            read = {}
        if read.keys() == set(_list_files(folder)):
            return read
        time.sleep(_PAUSE_S)
    raise ValueError(f"the tables of {folder} keep changing")


def _read_checked(file: Path, origin: TableOrigin, decay: float, table: NGramTable) -> TableContents:
    try:
        contents = read_table(file)
        _check_origin(file, contents.origin, origin, decay)
        table.check_shape(contents.entries, str(file))
    except ValueError as error:
        raise ValueError(f"{error}; remove the file, or name another folder") from error
    return contents


def _check_origin(file: Path, there: TableOrigin, here: TableOrigin, decay: float) -> None:
    if there.weights != here.weights and decay == 1:
        raise ValueError(
            f"{file} was learned with another model: {there.model} with weights {there.weights}, and here it is "
            f"{here.model} with weights {here.weights}"
        )
    if there.vocabulary != here.vocabulary:
        raise ValueError(
            f"{file} was learned with another vocabulary: {there.vocabulary} of {there.model}, and here it is "
            f"{here.vocabulary} of {here.model}"
        )


def _without_merged(tables: Sequence[TableContents]) -> list[TableContents]:
    """Returns the tables that no other one has in it, the oldest first."""
    merged = frozenset[str]().union(*(table.replaces for table in tables))
    counted: list[TableContents] = []
    contained: set[str] = set()
    # Only where locks do not work can two of the others have a table in common: then the one of more tables counts.
    for table in sorted(tables, key=lambda table: (-len(table.replaces), table.id)):
        if table.id not in merged and contained.isdisjoint(table.replaces):
            counted.append(table)
            contained |= table.replaces
    return sorted(counted, key=lambda table: (table.epoch, table.written))

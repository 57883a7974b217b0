"""Writes the files of a folder and follows no link on the way: every file is complete, refused, or as it was.

Only this module opens files of a run to write them. The folder itself may be reached through links (`outputs` may lead
to another disk). Below it every folder must be a real one and every file a regular one: a link would let a run
write outside its folder, and a pipe or a device would let it hang.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.part")
"""Names of files that are being written; one that is older than `PARTIAL_AGE_S` was left by a killed process."""
PARTIAL_AGE_S = 600.0

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a pipe must not wait for its other end

log = logging.getLogger(__name__)


class OutputError(OSError):
    """A file of an output folder cannot be written or read; the message is one sentence that names it."""


class OutputFolder:
    """A folder that a program writes into. Names are relative, such as `trees/a.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Makes the folder and those above it where they are missing. Raises: OutputError."""
        with _as_output_error("make the folder", self.path):
            if self.path.exists() and not self.path.is_dir():
                raise OutputError(f"{self.path} is a file; give a folder to write into")
            self.path.mkdir(parents=True, exist_ok=True)

    def probe(self) -> None:
        """Writes a small file and removes it. Raises: OutputError if the folder cannot be written or is full."""
        with _as_output_error("write into", self.path), self._enter("probe") as (at, _):
            name = _temporary_name("probe")
            _write_new(at, name, b" " * 4096)
            os.unlink(name, dir_fd=at)

    def refuse_links(self, *files: str, folders: tuple[str, ...] = ()) -> None:
        """Raises OutputError naming the first of these files and folders that is a link or of another kind.

        What is inside those folders is checked too, and so are files that are being written (`.part`).
        """
        with _as_output_error("read", self.path), self._enter("here") as (at, _):
            for name in (*files, *(name for name in os.listdir(at) if name.endswith(".part"))):
                _check_file(at, name, self.path / name)
            for folder in folders:
                if not _check_folder(at, folder, self.path / folder):
                    continue
                with _as_output_error("read", self.path / folder), os.scandir(self.path / folder) as entries:
                    for entry in entries:
                        if not entry.is_dir(follow_symlinks=False):
                            _require_regular(entry.stat(follow_symlinks=False), Path(entry.path))

    def remove_partial_files(self, *folders: str) -> None:
        """Removes what killed processes left half-written, here and in these folders. *Mutates* the folder."""
        for folder in ("", *folders):
            with suppress(FileNotFoundError), self._enter(str(PurePosixPath(folder, "here"))) as (at, _):
                for name in filter(PARTIAL.fullmatch, os.listdir(at)):
                    age = time.time() - os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime
                    if age > PARTIAL_AGE_S:
                        os.unlink(name, dir_fd=at)

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is none. Raises: OutputError."""
        path = self.path / name
        with _as_output_error("read", path):
            try:
                with self._enter(name) as (at, file):
                    if not _check_file(at, file, path, may_be_shared=True):
                        return None
                    descriptor = os.open(file, os.O_RDONLY | _SAFE, dir_fd=at)
            except FileNotFoundError:
                return None
            with open(descriptor, "rb") as opened:
                _require_regular(os.fstat(descriptor), path)
                return opened.read()

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file, or returns False where it exists. *Mutates* the folder. Raises: OutputError."""
        with _as_output_error("write", self.path / name), self._enter(name, make=True) as (at, file):
            try:
                _write_new(at, file, data)
            except FileExistsError:
                return False
            return True

    def replace(self, name: str, data: bytes) -> None:
        """Writes a file at once: a reader sees the old content or the new one, on disk on return. *Mutates* the folder.

        A folder of `name` is made where it is missing. This folder is not: where it is missing, it has vanished.

        Raises: OutputError.
        """
        path = self.path / name
        with _as_output_error("write", path), self._enter(name, make=True) as (at, file):
            _check_file(at, file, path, may_be_shared=True)  # the old file is replaced, so its other names keep it
            temporary = _temporary_name(file)
            _write_new(at, temporary, data)
            try:
                os.replace(temporary, file, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                _unlink(at, temporary)
                raise

    def append(self, name: str, data: bytes, *, create: bool = True) -> None:
        """Appends whole lines to a file, on disk on return, all of them or none. *Mutates* the file.

        What a killed process left of a line is cut off first.

        Raises: OutputError; also where the file is missing, unless `create`.
        """
        path = self.path / name
        with _as_output_error("write", path), self._locked(name, create=create) as descriptor:
            size = _cut_half_line(descriptor)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except OSError:
                _cut_to(descriptor, size)
                raise
            except BaseException:  # a signal: lines that a reader may have seen whole are never taken back
                if os.fstat(descriptor).st_size < size + len(data):
                    _cut_to(descriptor, size)
                raise

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds up `append` of other processes to this file, which must exist. Raises: OutputError."""
        with _as_output_error("lock", self.path / name), self._locked(name, create=False):
            yield

    @contextmanager
    def _enter(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yields a descriptor of the folder of `name`, reached without links below this folder, and the file's name."""
        *folders, file = PurePosixPath(name).parts
        at, here = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), self.path
        try:
            for folder in folders:
                here /= folder
                if not _check_folder(at, folder, here) and make:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=at)
                below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=at)
                # in this order: a signal between both must not make `finally` close it again
                at, above = below, at
                os.close(above)
            yield at, file
        finally:
            os.close(at)

    @contextmanager
    def _locked(self, name: str, *, create: bool) -> Iterator[int]:
        """Yields a locked descriptor of the file that has this name now."""
        path = self.path / name
        with self._enter(name, make=create) as (at, file):
            while True:
                _check_file(at, file, path)
                descriptor = os.open(
                    file, os.O_RDWR | os.O_APPEND | _SAFE | (os.O_CREAT if create else 0), 0o666, dir_fd=at
                )
                try:
                    _wait_for_lock(descriptor, path)
                    status = os.fstat(descriptor)
                    _require_regular(status, path)
                    if _is_same_file(at, file, status):  # else it was replaced while we waited for the lock
                        yield descriptor
                        return
                finally:
                    os.close(descriptor)


def read_regular(path: Path) -> bytes:
    """Returns the content of a regular file that is not a link. Raises: FileNotFoundError; OutputError."""
    data = OutputFolder(path.parent).read(path.name)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return data


def open_to_append(path: Path) -> BinaryIO:
    """Opens a regular file that is not a link, for a log or the output of a process; it is created if missing.

    Raises: OutputError.
    """
    with _as_output_error("write", path):
        with suppress(FileNotFoundError):
            _require_regular(path.lstat(), path)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFE, 0o666)
        _require_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "ab")


@contextmanager
def _as_output_error(act: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot {act} {path} ({error.strerror or error})") from error


def _check_file(at: int, file: str, path: Path, *, may_be_shared: bool = False) -> bool:
    """Returns whether the file exists. Raises: OutputError unless it is a regular file with this name only."""
    try:
        status = os.stat(file, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    _require_regular(status, path)
    if status.st_nlink > 1 and not may_be_shared:
        raise OutputError(
            f"{path} has a second name (a hard link), which would change with it; put a copy in its place"
        )
    return True


def _check_folder(at: int, folder: str, path: Path) -> bool:
    """Returns whether the folder exists. Raises: OutputError unless it is a real folder."""
    try:
        mode = os.stat(folder, dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        raise OutputError(f"{path} is a symbolic link, which is never written through; remove it")
    if not stat.S_ISDIR(mode):
        raise OutputError(f"{path} is not a folder; remove it")
    return True


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OutputError(f"{path} is a symbolic link, which is never read or written through; remove it")
    if not stat.S_ISREG(status.st_mode):
        raise OutputError(f"{path} is not a regular file; remove it")


def _is_same_file(at: int, file: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(file, dir_fd=at, follow_symlinks=False), status)
    except FileNotFoundError:
        return False


def _wait_for_lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("%s: this file system has no locks; let only one process write to the folder", path)


def _cut_to(descriptor: int, size: int) -> None:
    with suppress(OSError):
        os.ftruncate(descriptor, size)


def _cut_half_line(descriptor: int) -> int:
    """Cuts the file after its last line break and returns its size."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
    os.ftruncate(descriptor, whole)
    return whole


def _temporary_name(file: str) -> str:
    return f".{file}.{secrets.token_hex(8)}.part"


def _write_new(at: int, file: str, data: bytes) -> None:
    """Writes a file that must not exist; nothing of it is left where that fails."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=at)
    try:
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)  # before a rename, or a crash could leave an empty file under the final name
        finally:
            os.close(descriptor)
    except BaseException:
        _unlink(at, file)
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _unlink(at: int, file: str) -> None:
    with suppress(OSError):  # the first error is the one to tell
        os.unlink(file, dir_fd=at)

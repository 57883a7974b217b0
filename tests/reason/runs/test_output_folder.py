"""Nothing is written or read through a link, a pipe or a second name, and a failed write changes nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reason.runs.output_folder import PARTIAL_AGE_S, OutputError, OutputFolder, open_to_append

Write = Callable[[OutputFolder, str], object]

APPEND: Write = lambda folder, name: folder.append(name, b"new\n")  # noqa: E731
REPLACE: Write = lambda folder, name: folder.replace(name, b"new\n")  # noqa: E731
READ: Write = lambda folder, name: folder.read(name)  # noqa: E731
LOG: Write = lambda folder, name: open_to_append(folder.path / name)  # noqa: E731


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    (tmp_path / "run").mkdir()
    return OutputFolder(tmp_path / "run")


@pytest.mark.parametrize("act", [APPEND, REPLACE, READ, LOG])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_file_that_is_no_regular_file_is_refused_and_nothing_is_written(
    folder: OutputFolder, act: Write, kind: str
) -> None:
    victim, file = folder.path.parent / "victim", folder.path / "file"
    if kind == "link":
        victim.write_text("old\n")
    if kind in ("link", "dangling"):
        file.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(OutputError, match=r"file is (a symbolic link|not a regular file)"):
        act(folder, "file")
    assert not victim.exists() or victim.read_text() == "old\n"
    assert [entry.name for entry in folder.path.iterdir()] == ["file"]


@pytest.mark.parametrize("act", [REPLACE, READ, APPEND])
def test_folder_inside_the_folder_that_is_a_link_is_refused(folder: OutputFolder, act: Write) -> None:
    outside = folder.path.parent / "outside"
    outside.mkdir()
    (folder.path / "trees").symlink_to(outside)
    with pytest.raises(OutputError, match="trees is a symbolic link"):
        act(folder, "trees/a.json")
    assert list(outside.iterdir()) == []


def test_file_with_a_second_name_is_not_appended_to_but_may_be_replaced(folder: OutputFolder) -> None:
    other = folder.path.parent / "backup"
    other.write_text("old\n")
    (folder.path / "file").hardlink_to(other)
    with pytest.raises(OutputError, match="file has a second name"):
        folder.append("file", b"new\n")
    folder.replace("file", b"new\n")
    assert other.read_text() == "old\n"
    folder.append("file", b"more\n")
    assert folder.read("file") == b"new\nmore\n"


def test_folder_itself_may_be_reached_through_a_link(folder: OutputFolder) -> None:
    link = folder.path.parent / "link"
    link.symlink_to(folder.path)
    OutputFolder(link).replace("trees/a.json", b"{}")
    assert folder.read("trees/a.json") == b"{}"


@pytest.mark.parametrize("act", [APPEND, REPLACE])
def test_disk_that_is_full_changes_nothing(folder: OutputFolder, act: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.replace("file", b"old\n")
    write = os.write

    def fill(descriptor: int, data: bytes) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:2])

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OutputError, match=r"^cannot write .*file \(No space left on device\)$"):
        act(folder, "file")
    monkeypatch.undo()
    assert folder.read("file") == b"old\n"
    assert [entry.name for entry in folder.path.iterdir()] == ["file"]


def test_folder_that_has_vanished_is_not_made_again(folder: OutputFolder) -> None:
    folder.path.rmdir()
    for act in (APPEND, REPLACE):
        with pytest.raises(OutputError, match="No such file or directory"):
            act(folder, "a/file")
    assert not folder.path.exists()


def test_folder_below_a_file_cannot_be_made(folder: OutputFolder) -> None:
    folder.replace("file", b"")
    with pytest.raises(OutputError, match="file is a file; give a folder"):
        OutputFolder(folder.path / "file").make()
    with pytest.raises(OutputError, match="cannot make the folder"):
        OutputFolder(folder.path / "file" / "below").make()


def test_file_is_created_once(folder: OutputFolder) -> None:
    assert folder.create("file", b"first")
    assert not folder.create("file", b"second")
    (folder.path / "link").symlink_to(folder.path / "nowhere")
    assert not folder.create("link", b"second")
    assert folder.read("file") == b"first"


def test_append_cuts_off_what_a_killed_process_left(folder: OutputFolder) -> None:
    folder.append("file", b"whole\n")
    with (folder.path / "file").open("ab") as file:
        file.write(b"half a li")
    folder.append("file", b"next\n")
    assert folder.read("file") == b"whole\nnext\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space")])
def test_signal_while_a_written_line_reaches_the_disk_leaves_it(
    error: BaseException, folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the disk does not: the line may not be there after all."""
    folder.append("rows", b"one\n")

    def fail(descriptor: int) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises((KeyboardInterrupt, OutputError)):
            folder.append("rows", b"two\n")
    is_kept = isinstance(error, KeyboardInterrupt)
    assert folder.read("rows") == (b"one\ntwo\n" if is_kept else b"one\n")


@pytest.mark.parametrize("written", [2, 4])
def test_signal_right_after_a_write_takes_no_whole_line_back(
    written: int, folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may come when the bytes are in the file and before the next statement runs."""
    folder.append("rows", b"one\n")
    write = os.write

    def write_and_stop(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:written])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            folder.append("rows", b"two\n")
    assert folder.read("rows") == (b"one\ntwo\n" if written == 4 else b"one\n")


def test_signal_right_after_a_folder_is_closed_stays_a_signal(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed twice, the folder would be an error of the disk, which ends a run in another way."""
    close, closed = os.close, list[int]()

    def close_and_stop(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        if len(closed) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close_and_stop)
        with pytest.raises(KeyboardInterrupt):
            folder.replace("trees/a.json", b"{}")
    assert len(closed) == len(set(closed)) == 2


def test_old_partial_files_are_removed_and_new_ones_stay(folder: OutputFolder) -> None:
    folder.replace("trees/a.json", b"{}")
    old, new = (folder.path / "trees" / f".a.json.{digit * 16}.part" for digit in "01")
    for file in (old, new):
        file.write_bytes(b"{")
    os.utime(old, times=(0, time.time() - 2 * PARTIAL_AGE_S))
    folder.remove_partial_files("trees", "pages")
    assert sorted(entry.name for entry in (folder.path / "trees").iterdir()) == [new.name, "a.json"]


WRITER = """
import sys
from pathlib import Path
from reason.runs.result import ProblemResult, ResultFile

name, file = sys.argv[1], ResultFile(Path(sys.argv[2]))
for i in range(60):
    file.append_result(ProblemResult(id=f"{name}{i}", text="x" * 20000))
    if i % 5 == 0:
        file.reorder_results([f"{name}{k}" for k in range(i)])
"""


def test_two_processes_that_append_and_reorder_lose_no_row(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*command, name, str(tmp_path / "results.jsonl")]) for name in "ab"]
    assert [writer.wait(timeout=300) for writer in writers] == [0, 0]
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert {line.partition(",")[0] for line in lines} == {f'{{"id": "{name}{i}"' for name in "ab" for i in range(60)}
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.jsonl"]

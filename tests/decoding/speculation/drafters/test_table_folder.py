"""In a folder of tables every observation counts once, whatever engines start, save and are killed in it."""

from __future__ import annotations

import errno
import fcntl
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from decoding.speculation.drafters import table_folder
from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.table_file import SUFFIX, TableContents, TableOrigin, read_table
from decoding.speculation.drafters.table_memory import KeptTable, TableMemory
from tests.support.ngram_tables import HERE, counts_of, means_of, new_table, observe_text, table_of


class Replica:
    """An engine that has started with the tables of a folder."""

    def __init__(self, folder: Path, *, weights: str = "these weights", decay: float = 1.0) -> None:
        self.table = new_table()
        origin = TableOrigin("a model", weights, "a vocabulary")
        self.kept_table: KeptTable = TableMemory(folder, decay).open_table(self.table, origin)

    def learn(self, *texts: int) -> Replica:
        for text in texts:
            observe_text(self.table, text)
        return self

    def save(self) -> Replica:
        self.kept_table.save()
        return self


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def assert_has(table: NGramTable, texts: Iterable[int]) -> None:
    table.assert_invariants()
    expected = table_of(texts)
    assert counts_of(table) == counts_of(expected)
    means = means_of(table)
    for key, mean in means_of(expected).items():
        assert means[key] == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("replicas", [2, 5])
def test_what_replicas_have_begun_with_counts_once(tmp_path: Path, replicas: int) -> None:
    Replica(tmp_path).learn(0).save()
    texts = [0]
    for restart in range(3):
        running = [Replica(tmp_path) for _ in range(replicas)]
        for i, replica in enumerate(running):
            assert_has(replica.table, texts)
            replica.learn(100 * (1 + restart) + i)
        for replica in running:
            replica.save()
        texts += [100 * (1 + restart) + i for i in range(replicas)]
    assert_has(Replica(tmp_path).table, texts)


def test_a_running_engine_whose_table_another_one_has_merged_saves_what_it_has_learned_since(tmp_path: Path) -> None:
    Replica(tmp_path).learn(0).save()
    running = Replica(tmp_path).learn(1).save().learn(2).save()
    assert_has(Replica(tmp_path).table, [0, 1, 2])  # merged
    assert_has(Replica(tmp_path).table, [0, 1, 2])
    running.learn(3).save().learn(4).save()
    assert_has(running.table, range(5))
    assert_has(Replica(tmp_path).table, range(5))


@pytest.mark.parametrize("seed", range(6))
def test_each_saved_observation_counts_once_in_any_order_of_starts_saves_and_kills(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    running: list[tuple[Replica, list[int]]] = []  # with what each has not saved yet
    saved: list[int] = []
    for text in range(60):
        action = rng.choice(["start", "learn", "learn", "save", "save", "kill"])
        if action == "start":
            running.append((Replica(tmp_path), []))
            assert_has(running[-1][0].table, saved)
        elif running:
            at = rng.randrange(len(running))
            replica, unsaved = running[at]
            if action == "learn":
                replica.learn(text)
                unsaved.append(text)
            elif action == "save":
                replica.save()
                saved += unsaved
                unsaved.clear()
            else:
                del running[at]
    assert_has(Replica(tmp_path).table, saved)
    assert len(files_of(tmp_path)) <= 1 + len(running)


def test_replicas_that_start_and_save_at_once_lose_nothing(tmp_path: Path) -> None:
    def live(number: int) -> None:
        for text in range(3):
            Replica(tmp_path).learn(10 * number + text).save().learn(10 * number + 5 + text).save()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live, range(4)))
    texts = [10 * number + first + text for number in range(4) for first in (0, 5) for text in range(3)]
    assert_has(Replica(tmp_path).table, texts)


class Killed(BaseException):
    """Ends an engine in the middle of something."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Kills at the step number `step` of those that change the folder."""
    steps = iter(range(10**6))

    def killing(function: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **named: object) -> object:
            if next(steps) == step:
                raise Killed
            return function(*arguments, **named)

        return wrapped

    for name in ("rename", "unlink", "replace", "write_bytes"):
        monkeypatch.setattr(Path, name, killing(getattr(Path, name)))


@pytest.mark.parametrize("step", range(9))
def test_a_kill_in_a_merge_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    running = [Replica(tmp_path) for _ in range(3)]
    for text, replica in enumerate(running):
        replica.learn(text).save()
    was_killed = False
    with monkeypatch.context() as killed:
        kill_at(killed, step)
        try:
            Replica(tmp_path)  # renames three, writes one in two steps, removes three
        except Killed:
            was_killed = True
    assert was_killed == (step < 8)
    running[0].learn(3).save()
    assert_has(Replica(tmp_path).table, range(4))
    running[1].learn(4).save()
    running[2].save()
    assert_has(Replica(tmp_path).table, range(5))
    (file,) = files_of(tmp_path)
    assert {other.name for other in tmp_path.iterdir()} == {file.name, ".lock"}  # nor what was being written


def test_a_table_that_vanishes_while_it_is_read_is_found_in_the_one_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [Replica(tmp_path).learn(text) for text in range(3)]
    for replica in running:
        replica.save()
    is_first = True

    def read_late(file: Path) -> TableContents:
        """Reads after another engine has merged the folder."""
        nonlocal is_first
        if is_first:
            is_first = False
            Replica(tmp_path)
        return read_table(file)

    monkeypatch.setattr(table_folder, "read_table", read_late)
    tables = table_folder.read_tables(tmp_path, HERE, 1.0, new_table())
    merged = new_table()
    for table in tables:
        merged.add_entries(table.entries)
    assert_has(merged, range(3))


def test_tables_are_read_where_the_folder_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_folder, "LOCK_WAIT_S", 0.0)
    for text in range(2):
        Replica(tmp_path).learn(text).save()
    before = files_of(tmp_path)
    with table_folder.lock_folder(tmp_path):
        late = Replica(tmp_path)
        assert_has(late.table, range(2))
        late.learn(2).save()  # a warning
        assert files_of(tmp_path) == before
    late.save()
    assert_has(Replica(tmp_path).table, range(3))


def test_where_there_are_no_locks_tables_are_saved_and_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock_nothing(file: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", lock_nothing)
    for text in range(3):
        assert_has(Replica(tmp_path).learn(text).save().table, range(text + 1))
    assert len(files_of(tmp_path)) == 3


def test_merged_tables_that_share_one_are_not_added(tmp_path: Path) -> None:
    """Two engines have merged the same tables, on a file system whose locks do not work."""
    for text in range(2):
        Replica(tmp_path).learn(text).save()
    copies = {file.name: file.read_bytes() for file in files_of(tmp_path)}
    Replica(tmp_path)
    for name, data in copies.items():
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    Replica(tmp_path / "copy")
    (twin,) = files_of(tmp_path / "copy")
    twin.rename(tmp_path / twin.name)
    assert_has(Replica(tmp_path).table, range(2))


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (
            TableOrigin("a model", "b", "a vocabulary"),
            "another model: a model with weights these weights, and here it is a model with",
        ),
        (
            TableOrigin("a model", "these weights", "b"),
            "another vocabulary: a vocabulary of a model, and here it is b of a model",
        ),
    ],
)
def test_foreign_table_is_refused_and_the_folder_stays(tmp_path: Path, origin: TableOrigin, message: str) -> None:
    for text in range(2):
        Replica(tmp_path).learn(text).save()
    data = {file: file.read_bytes() for file in files_of(tmp_path)}
    for files in (2, 1):
        with pytest.raises(ValueError, match=message) as caught:
            TableMemory(tmp_path).open_table(new_table(), origin)
        assert "remove the file, or name another folder" in str(caught.value)
        with pytest.raises(ValueError, match="another width: 6, and this one 8"):
            TableMemory(tmp_path).open_table(new_table(width=8), HERE)
        with pytest.raises(ValueError, match="another number of orders: 3, and this one 5"):
            TableMemory(tmp_path).open_table(new_table(orders=5), HERE)
        assert {file: file.read_bytes() for file in files_of(tmp_path)} == data
        if files == 2:
            file, _ = data.popitem()
            file.unlink()


def faded(texts: Iterable[int], changes: int) -> dict[int, float]:
    """Counts of a table that was learned before so many changes of weights."""
    return {key: count * 0.5**changes for key, count in counts_of(table_of(texts)).items()}


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_table_fades_once_with_each_change_of_weights(tmp_path: Path, replicas: int) -> None:
    """However many replicas of each checkpoint start, one after the other, and save."""
    learned = [[10 * step + replica for replica in range(replicas)] for step in range(3)]
    for step, texts in enumerate(learned):
        for text in texts:
            Replica(tmp_path, weights=f"step {step}", decay=0.5).learn(text).save()
    counts = counts_of(Replica(tmp_path, weights="step 3", decay=0.5).table)
    parts = [faded([text], 3 - step) for step, texts in enumerate(learned) for text in texts]
    expected = {key: sum(part.get(key, 0.0) for part in parts) for key in {key for part in parts for key in part}}
    assert all(count <= expected[key] for key, count in counts.items())
    # below half an observation a table has no entry any more
    often = {key: count for key, count in expected.items() if min(part.get(key, 0.0) for part in parts) >= 0.5}
    assert len(often) >= 3
    assert {key: counts[key] for key in often} == often


def test_nothing_fades_while_the_weights_stay(tmp_path: Path) -> None:
    for text in range(3):
        assert_has(Replica(tmp_path, decay=0.5).learn(text).save().table, range(text + 1))
    counts = counts_of(Replica(tmp_path, weights="next", decay=0.5).table)
    assert counts == {key: count for key, count in faded(range(3), 1).items() if count >= 0.5}

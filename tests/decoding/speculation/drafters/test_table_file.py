"""A saved table drafts as before, tables merge by their observations, and a file of something else is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.table_file import TableOrigin, load_table, save_table

HERE = TableOrigin("a model", "a vocabulary")
SALTS = 2


def new_table(width: int = 6, orders: int = 3, capacity: int = 50_000) -> NGramTable:
    return NGramTable(width=width, capacity=capacity, orders=orders, salts=SALTS)


def observe_text(table: NGramTable, seed: int, rows: int = 60, vocabulary: int = 6) -> None:
    """Few words and a table as wide as the vocabulary, so that no token is dropped."""
    rng = np.random.default_rng(seed)
    p = -np.sort(-rng.dirichlet(np.full(vocabulary, 0.5), size=rows).astype(np.float32))
    ids = np.argsort(rng.random((rows, vocabulary)), axis=1)
    tails = rng.integers(3, size=(rows, 3))
    table.add_observations(salts_of(rows), tails, 1, ids, p)


def salts_of(rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    return np.tile(np.array([7, 1], dtype=np.uint64), (rows, 1))


def all_drafts(table: NGramTable) -> list[dict[int, float]]:
    """The probability of each token after every context of three tokens."""
    tails = np.stack(np.meshgrid(*[np.arange(3)] * 3), axis=-1).reshape(-1, 3)
    ids, logp, _ = table.next_tokens(salts_of(len(tails)), tails, 1)
    return [
        {token: float(np.exp(value)) for token, value in zip(row, values, strict=True) if token >= 0}
        for row, values in zip(ids.tolist(), logp.tolist(), strict=True)
    ]


def assert_same_drafts(one: NGramTable, other: NGramTable, tolerance: float) -> None:
    for a, b in zip(all_drafts(one), all_drafts(other), strict=True):
        assert a == pytest.approx(b, abs=tolerance)


def test_saved_table_drafts_as_before(tmp_path: Path) -> None:
    table, again = new_table(), new_table()
    for seed in range(5):
        observe_text(table, seed)
    save_table(table, tmp_path / "t", HERE)
    load_table(again, tmp_path / "t", HERE)
    again.assert_invariants()
    assert len(again) == len(table) == again.num_added
    # the prior of the reliability of each order is in it twice: half a trial among hundreds
    assert_same_drafts(table, again, 2e-2)
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def test_two_tables_merge_to_that_of_both_texts(tmp_path: Path) -> None:
    both, first, second, merged = (new_table() for _ in range(4))
    for table, seeds in ((both, (1, 2)), (first, (1,)), (second, (2,))):
        for seed in seeds:
            observe_text(table, seed)
    for name, table in (("1", first), ("2", second)):
        save_table(table, tmp_path / name, HERE)
        load_table(merged, tmp_path / name, HERE)
    merged.assert_invariants()
    saved, expected = (
        dict(zip(entries.key_N.tolist(), entries.count_N.tolist(), strict=True))
        for entries in (merged.save_entries(), both.save_entries())
    )
    assert saved == expected
    means, expected_means = (
        {
            key: dict(zip(ids, p, strict=True))
            for key, ids, p in zip(e.key_N.tolist(), e.ids_NK.tolist(), e.p_NK.tolist(), strict=True)
        }
        for e in (merged.save_entries(), both.save_entries())
    )
    for key, mean in expected_means.items():
        assert means[key] == pytest.approx(mean, abs=1e-3)


def test_decay_weighs_what_is_read_less_and_leaves_out_what_was_seen_too_rarely(tmp_path: Path) -> None:
    table, faded = new_table(), new_table()
    for seed in range(3):
        observe_text(table, seed)
    save_table(table, tmp_path / "t", HERE)
    load_table(faded, tmp_path / "t", HERE, decay=0.25)
    counts = table.save_entries().count_N
    assert sorted(faded.save_entries().count_N.tolist()) == sorted((counts[counts >= 2] / 4).tolist())
    assert len(faded) < len(table)


def test_no_more_than_half_of_the_capacity_is_read_the_newest(tmp_path: Path) -> None:
    table, small = new_table(), new_table(capacity=40)
    for seed in range(3):
        observe_text(table, seed)
    save_table(table, tmp_path / "t", HERE)
    load_table(small, tmp_path / "t", HERE)
    small.assert_invariants()
    assert set(small.save_entries().key_N.tolist()) == set(table.save_entries().key_N[-20:].tolist())


def test_file_that_cannot_be_used_is_refused_and_the_table_stays_empty(tmp_path: Path) -> None:
    table, other, file = new_table(), new_table(), tmp_path / "t"
    observe_text(table, 1)
    save_table(table, file, HERE)
    for origin, message in (
        (TableOrigin("b model", "a vocabulary"), "another model: a model, and here it is b model"),
        (TableOrigin("a model", "b vocabulary"), "another vocabulary: a vocabulary, and here it is b vocabulary"),
    ):
        with pytest.raises(ValueError, match=message):
            load_table(other, file, origin)
    load_table(new_table(), file, TableOrigin("b model", "a vocabulary"), decay=0.5)  # the model before more training
    with pytest.raises(ValueError, match="another width: 6, and this one 8"):
        load_table(new_table(width=8), file, HERE)
    with pytest.raises(ValueError, match="another number of orders: 3, and this one 5"):
        load_table(new_table(orders=5), file, HERE)
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="its contents do not match their digest"):
        load_table(other, file, HERE)
    for content in (b"", b"{}", bytes(data[: len(data) // 2]), b"\xff" * 64):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is no table"):
            load_table(other, file, HERE)
    save_file({"weights": np.zeros(3)}, file)
    with pytest.raises(ValueError, match="is no n-gram table, version 1, but something else"):
        load_table(other, file, HERE)
    assert len(other) == 0

"""A saved table drafts as before, tables add up by their observations, and a file of something else is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.table_file import TableContents, read_table, write_table
from tests.support.ngram_tables import HERE, counts_of, means_of, new_table, observe_text, salts_of, table_of


def contents_of(table: NGramTable) -> TableContents:
    return TableContents("an id", HERE, frozenset(["b", "c"]), 3, 17, table.save_entries())


def all_drafts(table: NGramTable) -> list[dict[int, float]]:
    """The probability of each token after every context of three tokens."""
    tails = np.stack(np.meshgrid(*[np.arange(3)] * 3), axis=-1).reshape(-1, 3)
    ids, logp, _ = table.next_tokens(salts_of(len(tails)), tails, 1)
    return [
        {token: float(np.exp(value)) for token, value in zip(row, values, strict=True) if token >= 0}
        for row, values in zip(ids.tolist(), logp.tolist(), strict=True)
    ]


def test_saved_table_drafts_as_before(tmp_path: Path) -> None:
    table, again = table_of(range(5)), new_table()
    write_table(tmp_path / "t", contents_of(table))
    read = read_table(tmp_path / "t")
    again.add_entries(read.entries)
    again.assert_invariants()
    assert len(again) == len(table) == again.num_added
    for a, b in zip(all_drafts(table), all_drafts(again), strict=True):
        assert a == pytest.approx(b, abs=1e-6)
    assert (read.id, read.origin, read.replaces, read.epoch, read.written) == ("an id", HERE, frozenset("bc"), 3, 17)
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def test_two_tables_add_up_to_that_of_both_texts() -> None:
    both, merged = table_of([1, 2]), new_table()
    for text in (1, 2):
        merged.add_entries(table_of([text]).save_entries())
    merged.assert_invariants()
    assert counts_of(merged) == counts_of(both)
    for key, mean in means_of(both).items():
        assert means_of(merged)[key] == pytest.approx(mean, abs=1e-3)


def test_decay_weighs_what_is_read_less_and_leaves_out_what_was_seen_too_rarely() -> None:
    table, faded = table_of(range(3)), new_table()
    faded.add_entries(table.save_entries(), 0.25)
    counts = np.array(list(counts_of(table).values()))
    assert sorted(counts_of(faded).values()) == sorted((counts[counts >= 2] / 4).tolist())
    assert len(faded) < len(table)


def test_no_more_than_half_of_the_capacity_is_read_the_newest() -> None:
    table, small = table_of(range(3)), new_table(capacity=40)
    small.add_entries(table.save_entries())
    small.assert_invariants()
    assert set(counts_of(small)) == set(table.save_entries().key_N[-20:].tolist())


def test_increments_are_what_was_observed_and_not_what_was_added() -> None:
    table = new_table()
    table.add_entries(table_of([1]).save_entries())
    table.increments = table.new_empty(50_000)
    observe_text(table, 2)
    table.add_entries(table_of([3]).save_entries())
    assert counts_of(table.increments) == counts_of(table_of([2]))
    assert counts_of(table) == counts_of(table_of([1, 2, 3]))


def test_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t"
    write_table(file, contents_of(table_of([1])))
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="its contents do not match their digest"):
        read_table(file)
    for content in (b"", b"{}", bytes(data[: len(data) // 2]), b"\xff" * 64):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is no table"):
            read_table(file)
    save_file({"weights": np.zeros(3)}, file)
    with pytest.raises(ValueError, match="is no n-gram table, version 3, but something else"):
        read_table(file)
    save_file({"weights": np.zeros(3)}, file, {"format": "n-gram table, version 1"})
    with pytest.raises(ValueError, match="is no n-gram table, version 3, but n-gram table, version 1"):
        read_table(file)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        read_table(file)

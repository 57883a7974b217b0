"""All ranks of a server begin with the table that the first one has read, and the first one saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decoding.sglang_plugin.server_table import open_server_table
from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.table_memory import TableMemory
from decoding.speculation.saving import SavingSchedule
from tests.support.ngram_tables import HERE, counts_of, new_table, observe_text, table_of


class RanksInTurn:
    """Hands on what the first rank has sent."""

    def __init__(self) -> None:
        self.is_first_rank = True
        self.sent: Any = None

    def broadcast_object(self, obj: Any = None) -> Any:
        if self.is_first_rank:
            self.sent = obj
        return self.sent


def open_rank(folder: Path, table: NGramTable, ranks: RanksInTurn) -> SavingSchedule:
    return open_server_table(TableMemory(folder), table, lambda: HERE, ranks)


def test_ranks_have_the_same_table_though_the_folder_changes_while_they_start(tmp_path: Path) -> None:
    for text in (1, 2):
        other = new_table()
        kept_table = TableMemory(tmp_path).open_table(other, HERE)
        observe_text(other, text)
        kept_table.save()
    ranks, first, second = RanksInTurn(), new_table(), new_table()
    saving = open_rank(tmp_path, first, ranks)
    observe_text(other, 3)
    kept_table.save()  # a replica, before the second rank begins
    ranks.is_first_rank = False
    silent = open_rank(tmp_path, second, ranks)
    assert counts_of(first) == counts_of(second) == counts_of(table_of([1, 2]))
    files = sorted(tmp_path.iterdir())
    for schedule, table in ((silent, second), (saving, first)):
        observe_text(table, 4)
        assert sorted(tmp_path.iterdir()) == files
        schedule.note_round(1e9)
    assert counts_of(first) == counts_of(second)
    assert len(list(tmp_path.iterdir())) == len(files) + 1
    again = new_table()
    TableMemory(tmp_path).open_table(again, HERE)
    assert counts_of(again) == counts_of(table_of([1, 2, 3, 4]))


def test_a_broken_table_ends_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    ranks = RanksInTurn()
    for is_first in (True, False):
        ranks.is_first_rank = is_first
        with pytest.raises(ValueError, match=r"^--reason-table: .* is no table"):
            open_rank(tmp_path, new_table(), ranks)

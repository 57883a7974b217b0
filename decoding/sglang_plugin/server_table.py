"""The table of a server: all ranks of a model begin with the same one, and the first rank saves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from decoding.speculation.drafters.table_memory import EarlierTables, TableMemory
from decoding.speculation.saving import SavingSchedule

if TYPE_CHECKING:
    from decoding.speculation.drafters.ngram_table import NGramTable
    from decoding.speculation.drafters.table_file import TableOrigin

_BUSY_S = 600.0  # between savings while requests wait for it


class Ranks(Protocol):
    """SGLang's `GroupCoordinator`, as far as it is used here."""

    @property
    def is_first_rank(self) -> bool: ...

    def broadcast_object(self, obj: Any = None) -> Any:
        """Returns the first rank's object in all ranks."""


def open_server_table(
    memory: TableMemory, table: NGramTable, make_origin: Callable[[], TableOrigin], ranks: Ranks
) -> SavingSchedule:
    """Adds what the first rank reads to the table of this rank. *Mutates* it.

    The others do not read the folder: it may change in between, and ranks with different tables draft different tokens.

    Raises: ValueError in all ranks.
    """
    result: EarlierTables | ValueError | None = None
    if ranks.is_first_rank:
        origin = make_origin()
        try:
            result = memory.read_earlier(table, origin)
        except ValueError as error:
            result = error
    result = ranks.broadcast_object(result)
    if isinstance(result, ValueError):
        raise ValueError(f"--reason-table: {result}") from result
    assert result is not None
    if ranks.is_first_rank:
        return SavingSchedule(memory.begin_table(table, origin, result).save, time.monotonic(), _BUSY_S)
    result.add_to(table)
    return SavingSchedule(_save_nothing, time.monotonic(), _BUSY_S)


def _save_nothing() -> None:
    pass

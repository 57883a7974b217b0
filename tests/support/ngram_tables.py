"""Small n-gram tables, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from decoding.speculation.drafters.ngram_table import NGramTable
from decoding.speculation.drafters.table_file import TableOrigin

SALTS = 2
HERE = TableOrigin("a model", "these weights", "a vocabulary")


def new_table(width: int = 6, orders: int = 3, capacity: int = 50_000) -> NGramTable:
    return NGramTable(width=width, capacity=capacity, orders=orders, salts=SALTS)


def salts_of(rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    return np.tile(np.array([7, 1], dtype=np.uint64), (rows, 1))


def observe_text(table: NGramTable, seed: int, rows: int = 60, vocabulary: int = 6) -> None:
    """Few words and a table as wide as the vocabulary, so that no token is dropped."""
    rng = np.random.default_rng(seed)
    p = -np.sort(-rng.dirichlet(np.full(vocabulary, 0.5), size=rows).astype(np.float32))
    ids = np.argsort(rng.random((rows, vocabulary)), axis=1)
    tails = rng.integers(3, size=(rows, 3))
    table.add_observations(salts_of(rows), tails, 1, ids, p)


def table_of(texts: Iterable[int]) -> NGramTable:
    """Returns a table that has learned these texts."""
    table = new_table()
    for text in texts:
        observe_text(table, text)
    return table


def counts_of(table: NGramTable) -> dict[int, float]:
    """Returns the number of observations of each entry."""
    entries = table.save_entries()
    return dict(zip(entries.key_N.tolist(), entries.count_N.tolist(), strict=True))


def means_of(table: NGramTable) -> dict[int, dict[int, float]]:
    """Returns the distribution of each entry."""
    entries = table.save_entries()
    return {
        key: dict(zip(ids, p, strict=True))
        for key, ids, p in zip(entries.key_N.tolist(), entries.ids_NK.tolist(), entries.p_NK.tolist(), strict=True)
    }

"""The table against plain dictionaries; what it forgets when it is full."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from decoding.core import Tokens
from decoding.speculation.drafters.ngram_backoff import trust_level
from decoding.speculation.drafters.ngram_table import NGramTable

TRACE, LEAST_SAY = 1e-4, 0.02
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Distributions = tuple[Ints, Floats]


class Plain:
    """The same without evictions: running means in float64, cut to `width` after every one of them."""

    def __init__(self, width: int, orders: int, salts: int, recent: int | None = None) -> None:
        self.width, self.recent = width, recent
        self.mean: dict[tuple[int, Tokens], dict[int, float]] = {}
        self.met: dict[tuple[int, Tokens], int] = {}
        self.right = np.full((orders, salts, 3, 5), 0.5)
        self.tried = np.ones((orders, salts, 3, 5))

    def contexts(self, salts: Keys, tail: Ints, least: int) -> list[tuple[int, int, tuple[int, Tokens]]]:
        """(order, which salt, key), longer ones first, then the first salt first."""
        orders = [n for n in range(len(tail), least - 1, -1) if n in (least, 1, 2, 3, 4, 6, 8)]
        return [(order, z, (int(salt), tuple(tail[-order:]))) for order in orders for z, salt in enumerate(salts)]

    def kind_of(self, key: tuple[int, Tokens]) -> tuple[int, int]:
        """How often a context was met, and how sure it is of its next token."""
        largest = np.float32(max(self.mean[key].values()))
        return (self.met[key] >= 2) + (self.met[key] >= 5), sum(bool(largest >= p) for p in (0.3, 0.6, 0.9, 0.98))

    def learn(self, salts_FZ: Keys, tails_FO: Ints, least: int, ids_FK: Ints, p_FK: Floats) -> None:
        new_rows = [dict(zip(ids.tolist(), p.tolist(), strict=True)) for ids, p in zip(ids_FK, p_FK, strict=True)]
        rows = [self.contexts(salts, tail, least) for salts, tail in zip(salts_FZ, tails_FO, strict=True)]
        for row, new in zip(rows, new_rows, strict=True):
            for order, z, key in row:
                if key in self.met:
                    foretold = sum(min(p, new.get(token, 0)) for token, p in self.mean[key].items())
                    self.right[order - 1, z, *self.kind_of(key)] += foretold
                    self.tried[order - 1, z, *self.kind_of(key)] += 1
        for row, new in zip(rows, new_rows, strict=True):
            for _, _, key in row:
                met, old = self.met.get(key, 0), self.mean.get(key, {})
                worth = {token: p for token, p in new.items() if p >= TRACE}
                weight = met if self.recent is None else min(met, self.recent - 1)
                mean = {t: (old.get(t, 0) * weight + worth.get(t, 0)) / (weight + 1) for t in old.keys() | worth.keys()}
                self.mean[key] = dict(sorted(mean.items(), key=lambda item: -item[1])[: self.width])
                self.met[key] = met + 1

    def blend(self, salts: Keys, tail: Ints, least: int, only_longest: bool) -> tuple[dict[int, float], float]:
        left, heaviest, mixed = 1.0, 0.0, dict[int, float]()
        for order, z, key in self.contexts(salts, tail, least):
            if key not in self.met or left < LEAST_SAY:
                continue
            kind = order - 1, z, *self.kind_of(key)
            say = float(self.right[kind] / self.tried[kind])
            heaviest = heaviest or say
            share = left if only_longest else left * say
            left -= share
            for token, p in self.mean[key].items():
                mixed[token] = mixed.get(token, 0) + share * p
        return mixed, heaviest


def random_distributions(rng: np.random.Generator, rows: int, width: int, vocabulary: int) -> Distributions:
    """Returns random target distributions, best first: a few likely tokens, some with almost no probability."""
    p = rng.dirichlet(np.full(vocabulary, 0.3), size=rows).astype(np.float32)
    ids = np.argsort(-p, axis=1)[:, :width]
    return ids, np.take_along_axis(p, ids, axis=1)


def tails_of(rng: np.random.Generator, rows: int, orders: int, letters: int = 3) -> Ints:
    """Few letters, so that contexts come back, several times in one call too."""
    return rng.integers(letters, size=(rows, orders))


def salts_of(*salts: int, rows: int = 1) -> Keys:
    return np.tile(np.array(salts, dtype=np.uint64), (rows, 1))


def has_full_context(table: NGramTable, salts_FZ: Keys, tails_FO: Ints) -> npt.NDArray[np.bool_]:
    """Which contexts are has_full_context in their full length."""
    return table.next_tokens(salts_FZ, tails_FO, tails_FO.shape[1])[2] > 0


@pytest.mark.parametrize("only_longest", [False, True])
@pytest.mark.parametrize(
    ("orders", "least", "width", "salts", "recent"),
    [(3, 1, 4, 1, 5), (4, 2, 3, 2, None), (1, 1, 2, 2, None), (2, 1, 9, 2, 2), (9, 1, 4, 2, 16), (5, 5, 4, 1, None)],
)
def test_equals_plain_dictionaries(
    orders: int, least: int, width: int, salts: int, recent: int | None, only_longest: bool
) -> None:
    """A full entry used to drop its last token before seeing that the same distribution speaks of it again."""
    rng = np.random.default_rng(orders)
    table = NGramTable(width=width, capacity=50_000, orders=orders, salts=salts, recent=recent)
    plain = Plain(width, orders, salts, recent)
    for _ in range(40):
        rows = int(rng.integers(1, 30))
        problem_salts = rng.integers(2, 4, size=(rows, 1)).astype(np.uint64)
        salts_FZ = problem_salts if salts == 1 else np.concatenate([problem_salts, np.ones_like(problem_salts)], axis=1)
        tails, (ids, p) = tails_of(rng, rows, orders), random_distributions(rng, rows, 6, 12)
        table.add_observations(salts_FZ, tails, least, ids, p)
        plain.learn(salts_FZ, tails, least, ids, p)
        table.assert_invariants()
        queried_tails = tails_of(rng, 9, orders, letters=4)
        its_salts = salts_FZ[rng.integers(rows, size=9)]
        ids_FK, logp_FK, trust_F = table.next_tokens(its_salts, queried_tails, least, only_longest=only_longest)
        p_FK = np.exp(logp_FK)
        assert (np.diff(p_FK, axis=1) <= 0).all(), "best first"
        assert (p_FK.sum(1) <= 1 + 1e-5).all()
        for f in range(9):
            expected, heaviest = plain.blend(its_salts[f], queried_tails[f], least, only_longest)
            best = sorted(expected.values(), reverse=True)[:width]
            is_candidate = ids_FK[f] >= 0
            np.testing.assert_allclose(p_FK[f][is_candidate], best, atol=1e-5)
            np.testing.assert_allclose(
                p_FK[f][is_candidate], [expected[t] for t in ids_FK[f][is_candidate].tolist()], atol=1e-5
            )
            assert trust_F[f] in ({0} if not heaviest else {trust_level(heaviest - 1e-4), trust_level(heaviest + 1e-4)})
    assert len(table) == len(plain.met)


BOB, MARY, TOM, SUE = range(4)


def test_the_papers_example() -> None:
    table = NGramTable(width=10, capacity=1000, orders=1, salts=1)
    for ids, p in (([BOB, MARY, TOM], [0.7, 0.2, 0.05]), ([MARY, BOB, SUE], [0.6, 0.3, 0.05])):
        table.add_observations(salts_of(7), np.array([[9]]), 1, np.array([ids]), np.array([p], dtype=np.float32))
    ids_FK, logp_FK, _ = table.next_tokens(salts_of(7), np.array([[9]]), 1, only_longest=True)
    assert ids_FK[0].tolist() == [BOB, MARY, TOM, SUE] + [-1] * 6
    np.testing.assert_allclose(np.exp(logp_FK[0]), [0.5, 0.4, 0.025, 0.025] + [0] * 6, atol=1e-6)


def test_a_token_is_not_crowded_out_by_one_that_ends_up_less_likely() -> None:
    """.1 and .15 make .125, more than the .2 and 0 of a newcomer that used to take its place first."""
    table = NGramTable(width=2, capacity=1000, orders=1, salts=1)
    for ids, p in (([BOB, MARY], [0.5, 0.1]), ([TOM, MARY], [0.2, 0.15])):
        table.add_observations(salts_of(7), np.array([[9]]), 1, np.array([ids]), np.array([p], dtype=np.float32))
    ids_FK, logp_FK, _ = table.next_tokens(salts_of(7), np.array([[9]]), 1, only_longest=True)
    assert ids_FK[0].tolist() == [BOB, MARY]
    np.testing.assert_allclose(np.exp(logp_FK[0]), [0.25, 0.125], atol=1e-6)


def test_the_longest_known_context_alone_or_everyone_his_share() -> None:
    """Entries without trials get half of the remaining probability."""
    table = NGramTable(width=4, capacity=1000, orders=3, salts=1)
    for tail, token in (((8, 8, 5), 1), ((8, 6, 5), 2), ((7, 6, 5), 3)):
        order = 3 if token == 3 else token
        ids, p = np.array([[token]]), np.ones((1, 1), dtype=np.float32)
        table.add_observations(salts_of(4), np.array([tail[3 - order :]]), order, ids, p)
    queried_tails = np.array([[7, 6, 5], [8, 6, 5], [8, 8, 5], [8, 8, 8]])
    salts = salts_of(4, rows=4)
    assert table.next_tokens(salts, queried_tails, 1, only_longest=True)[0][:, 0].tolist() == [3, 2, 1, -1]
    ids_FK, logp_FK, trust_F = table.next_tokens(salts, queried_tails, 1)
    assert [row[row >= 0].tolist() for row in ids_FK] == [[3, 2, 1], [2, 1], [1], []]
    np.testing.assert_allclose(np.exp(logp_FK[:3, :3]), [[0.5, 0.25, 0.125], [0.5, 0.25, 0], [0.5, 0, 0]], atol=1e-6)
    assert trust_F.tolist() == [trust_level(0.5)] * 3 + [0]


def test_contexts_that_foretell_well_are_believed_more() -> None:
    """After the pair comes always the same, after the last token alone anything."""
    rng = np.random.default_rng(0)
    table = NGramTable(width=4, capacity=1000, orders=2, salts=1)
    for _ in range(60):
        first = int(rng.integers(8))
        ids, p = np.array([[10 + first]]), np.ones((1, 1), dtype=np.float32)
        table.add_observations(salts_of(4), np.array([[first, 9]]), 1, ids, p)
    ids_FK, logp_FK, trust_F = table.next_tokens(salts_of(4), np.array([[3, 9]]), 1)
    assert ids_FK[0, 0] == 13
    assert logp_FK[0, 0] > np.log(0.9)
    assert trust_F[0] >= trust_level(0.9)
    assert table.next_tokens(salts_of(4), np.array([[77, 9]]), 1)[2][0] <= trust_level(0.4)


def test_salts_keep_problems_apart_and_the_second_is_asked_after_the_first() -> None:
    table = NGramTable(width=4, capacity=1000, orders=1, salts=2)
    tail, p = np.array([[5]]), np.ones((1, 1), dtype=np.float32)
    table.add_observations(salts_of(2, 1), tail, 1, np.array([[20]]), p)
    table.add_observations(salts_of(3, 1), tail, 1, np.array([[30]]), p)
    assert table.next_tokens(salts_of(2), tail, 1)[0][0].tolist() == [20, -1, -1, -1]
    assert table.next_tokens(salts_of(9), tail, 1)[0][0].tolist() == [-1] * 4
    assert sorted(table.next_tokens(salts_of(9, 1), tail, 1)[0][0].tolist()) == [-1, -1, 20, 30]
    assert table.next_tokens(salts_of(3, 1), tail, 1)[0][0, 0] == 30
    assert table.next_tokens(salts_of(3, 1), tail, 1, only_longest=True)[0][0].tolist() == [30, -1, -1, -1]


@pytest.mark.parametrize("capacity", [10, 300, 3000])
def test_it_stays_within_its_capacity_and_knows_what_it_learned_last(capacity: int) -> None:
    """It used to forget nothing before its slots were full, up to twice the capacity; and then, when many entries were
    equally old, everything."""
    rng, orders = np.random.default_rng(capacity), 2
    table = NGramTable(width=3, capacity=capacity, orders=orders, salts=1)
    rows = max(1, capacity // 20)
    forgot = 0
    for _ in range(100):
        tails, (ids, p) = rng.integers(10_000, size=(rows, orders)), random_distributions(rng, rows, 3, 10)
        before = len(table)
        table.add_observations(salts_of(2, rows=rows), tails, 1, ids, p)
        table.assert_invariants()
        assert len(table) <= capacity
        assert has_full_context(table, salts_of(2, rows=rows), tails).all()
        forgot += len(table) < before
    assert forgot > 3
    assert len(table) >= capacity * 0.4


def test_what_is_learned_again_and_again_is_never_forgotten() -> None:
    rng = np.random.default_rng(1)
    table = NGramTable(width=3, capacity=400, orders=1, salts=1)
    old, ids, p = np.array([[3]]), np.array([[5]]), np.ones((1, 1), dtype=np.float32)
    for _ in range(100):
        table.add_observations(salts_of(2), old, 1, ids, p)
        tails, (some, theirs) = rng.integers(10, 10_000, size=(30, 1)), random_distributions(rng, 30, 3, 10)
        table.add_observations(salts_of(2, rows=30), tails, 1, some, theirs)
        assert table.next_tokens(salts_of(2), old, 1)[0][0, 0] == 5
    table.assert_invariants()


@pytest.mark.parametrize("capacity", [40, 1000, 5000])
def test_a_call_larger_than_the_capacity_leaves_its_end(capacity: int) -> None:
    rng, orders, rows = np.random.default_rng(capacity), 2, 10_000
    table = NGramTable(width=3, capacity=capacity, orders=orders, salts=1)
    tails, (ids, p) = rng.integers(1_000_000, size=(rows, orders)), random_distributions(rng, rows, 3, 10)
    table.add_observations(salts_of(2, rows=rows), tails, 1, ids, p)
    table.assert_invariants()
    assert len(table) <= capacity
    last = capacity // 8
    assert has_full_context(table, salts_of(2, rows=rows), tails)[-last:].all()


def test_growing_loses_nothing() -> None:
    rng = np.random.default_rng(2)
    table, plain = NGramTable(width=3, capacity=40_000, orders=1, salts=1), Plain(3, 1, 1)
    for _ in range(20):
        tails, (ids, p) = rng.integers(30_000, size=(1000, 1)), random_distributions(rng, 1000, 3, 10)
        table.add_observations(salts_of(2, rows=1000), tails, 1, ids, p)
        plain.learn(salts_of(2, rows=1000), tails, 1, ids, p)
        table.assert_invariants()
    assert len(table) == len(plain.met) > 10_000
    every = np.array([[key[1][0]] for key in plain.met])
    ids_FK, logp_FK, _ = table.next_tokens(salts_of(2, rows=len(every)), every, 1, only_longest=True)
    assert ids_FK[:, 0].tolist() == [max(mean, key=lambda t: mean[t]) for mean in plain.mean.values()]
    np.testing.assert_allclose(np.exp(logp_FK[:, 0]), [max(mean.values()) for mean in plain.mean.values()], atol=1e-6)


def test_its_size_is_bounded() -> None:
    rng = np.random.default_rng(3)
    table = NGramTable(width=10, capacity=2000, orders=1, salts=1)
    for _ in range(50):
        tails, (ids, p) = rng.integers(1 << 40, size=(300, 1)), random_distributions(rng, 300, 10, 12)
        table.add_observations(salts_of(2, rows=300), tails, 1, ids, p)
    assert table.size_bytes <= 150 * 4 * 2000


def test_no_rows_are_fine() -> None:
    table = NGramTable(width=3, capacity=100, orders=2, salts=1)
    nothing = np.empty((0, 2), dtype=np.int64)
    table.add_observations(salts_of(2)[:0], nothing, 1, nothing, np.empty((0, 2), dtype=np.float32))
    assert [len(part) for part in table.next_tokens(salts_of(2)[:0], nothing, 1)] == [0, 0, 0]
    table.assert_invariants()


def test_one_update_above_the_capacity_is_added() -> None:
    """It used to fill all slots, and then look for a free one for ever."""
    table, rng = NGramTable(width=2, capacity=50, orders=256, salts=1), np.random.default_rng(0)
    for _ in range(4):
        tails_FO = rng.integers(0, 1000, (3, 256))
        ids_FK, p_FK = rng.integers(0, 9, (3, 1)), np.ones((3, 1), dtype=np.float32)
        table.add_observations(np.ones((3, 1), dtype=np.uint64), tails_FO, 1, ids_FK, p_FK)
        table.assert_invariants()

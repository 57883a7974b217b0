"""Items read from a table on the device the keys that a plan without a table lists, in every round of any history."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.kv.kv_cache import KVCache
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import SlotPool, Slots
from decoding.model.batch import EMPTY_DRAFT, SequenceInput, pack_segments
from decoding.model.key_table import TABLE_BYTES_PER_SLOT, KeyTable
from decoding.model.round_packer import SegmentPacker
from decoding.model.segments import SegmentPlan, SegmentTiles
from tests.support.radix_rounds import random_draft

TILES = SegmentTiles(3, 64)
NUM_SLOTS, QUESTION = 600, 9
OUTCOMES = ("commit", "commit", "commit", "undo", "undo before the copy")


class History:
    """Sequences over one cache, and the rounds in which they are computed. `rng` decides what happens."""

    def __init__(self, rng: np.random.Generator, table: KeyTable) -> None:
        self.rng, self.table = rng, table
        self.packer = SegmentPacker[TokenSequence](TILES, table)
        self.cache = KVCache(SlotPool(NUM_SLOTS))
        self.running: list[TokenSequence] = []
        self.texts: list[tuple[int, ...]] = [()]

    def admit(self) -> None:
        text = self.texts[int(self.rng.integers(len(self.texts)))]
        new = self.rng.integers(0, 9, self.rng.integers(2, 30)).tolist()
        self.texts.append((*text[: self.rng.integers(len(text) + 1)], *new))
        if len(self.running) < 6:
            self.running.append(TokenSequence(len(self.texts), self.texts[-1]))
            self.acquire(self.running[-1])

    def acquire(self, sequence: TokenSequence) -> None:
        self.cache.acquire(sequence, self.cache.match_prefix(sequence))

    def pick(self) -> TokenSequence | None:
        return self.running[int(self.rng.integers(len(self.running)))] if self.running else None

    def insert(self) -> None:
        """The cache takes the sequence's slots; nodes that end inside them are split."""
        if (sequence := self.pick()) is not None and not sequence.num_evicted:
            self.cache.insert(sequence)

    def preempt(self) -> None:
        if (sequence := self.pick()) is not None:
            self.cache.release(sequence)
            self.acquire(sequence)

    def finish(self) -> None:
        if (sequence := self.pick()) is not None:
            self.cache.release(sequence)
            self.running.remove(sequence)

    def drop(self) -> None:
        """The sequence evicts KV of its own, and reads the rest of its cached prefix alone."""
        if (sequence := self.pick()) is not None and sequence.num_slots > QUESTION:
            num_whole = min(QUESTION, sequence.num_cached)
            is_kept = self.rng.random(sequence.num_slots) < 0.7
            is_kept[:num_whole], is_kept[-1] = True, False
            self.cache.evict(sequence, is_kept, num_whole)

    def evict(self) -> None:
        self.cache.prefix_cache.evict_tokens(int(self.rng.integers(1, 60)))

    def run_round(self) -> None:
        chosen = [sequence for sequence in self.running if self.rng.random() < 0.8]
        inputs = [item for sequence in chosen if (item := self.make_input(sequence)) is not None]
        self.decode_round(inputs)

    def run_plain_rounds(self) -> None:
        """Those that are complete decode on, one token each."""
        chosen = [sequence for sequence in self.running if sequence.num_uncomputed == 1]
        for _ in range(int(self.rng.integers(1, 80))):
            if len(chosen) > self.cache.num_available:
                return
            self.decode_round([SequenceInput(sequence, 1, self.cache.allocate(1), 0) for sequence in chosen])

    def decode_round(self, inputs: list[SequenceInput[TokenSequence]], outcome: str | None = None) -> None:
        if not inputs:
            return
        outcome = outcome or OUTCOMES[int(self.rng.integers(len(OUTCOMES)))]
        self.compare_plans(inputs, is_written=outcome != "undo before the copy")
        for item in inputs:
            if outcome == "commit":
                self.commit(item)
            else:
                self.cache.pool.free(item.slots)

    def make_input(self, sequence: TokenSequence) -> SequenceInput[TokenSequence] | None:
        num_committed = int(self.rng.integers(1, sequence.num_uncomputed + 1))
        is_complete = num_committed == sequence.num_uncomputed
        draft = random_draft(self.rng, int(self.rng.choice([0, 3, 70]))) if is_complete else EMPTY_DRAFT
        if num_committed + len(draft) > self.cache.num_available:
            return None
        slots = self.cache.allocate(num_committed + len(draft))
        return SequenceInput(sequence, num_committed, slots, num_committed - 1, draft)

    def commit(self, item: SequenceInput[TokenSequence]) -> None:
        sequence, node_slots = item.sequence, item.slots[item.num_committed :]
        sequence.append_slots(item.slots[: item.num_committed])
        path: tuple[int, ...] = ()
        if len(item.draft):
            path = item.draft.path_to(int(self.rng.integers(-1, len(item.draft))))
            sequence.append_tokens([0] * len(path))
            sequence.append_slots(node_slots[list(path)])
        self.cache.pool.free(np.delete(node_slots, path))
        if not sequence.num_uncomputed:
            sequence.append_tokens([int(self.rng.integers(9))])

    def compare_plans(self, inputs: list[SequenceInput[TokenSequence]], *, is_written: bool) -> None:
        (batch, ordered), (expected_batch, expected_order) = (
            self.packer.pack_round(inputs),
            pack_segments(inputs, TILES),
        )
        plan, listed = batch.segments, expected_batch.segments
        assert plan is not None
        assert listed is not None
        assert [*map(id, ordered)] == [*map(id, expected_order)]
        for name in ("tokens_T", "positions_T", "slots_T", "logits_indices"):
            assert getattr(batch, name).tolist() == getattr(expected_batch, name).tolist()
        assert plan.update is not None
        assert len(np.unique(plan.update.positions)) == len(plan.keys)
        if not is_written:
            return
        keys = write(plan).numpy()
        for column, expected in zip(plan.items, listed.items, strict=True):
            assert column is plan.items.first_key or column.tolist() == expected.tolist()
        assert (plan.words.tolist(), plan.first_partial.tolist()) == (
            listed.words.tolist(),
            listed.first_partial.tolist(),
        )
        firsts = zip(plan.items.first_key, listed.items.first_key, plan.items.num_keys, strict=True)
        for here, there, count in firsts:
            assert keys[here : here + count].tolist() == listed.keys[there : there + count].tolist()

    def run(self, num_steps: int) -> None:
        steps = [self.admit, self.insert, self.preempt, self.finish, self.drop, self.evict]
        for _ in range(num_steps):
            steps[int(self.rng.choice(6, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1]))]()
            self.run_plain_rounds() if self.rng.random() < 0.2 else self.run_round()
            self.cache.assert_invariants(self.running)


def write(plan: SegmentPlan) -> torch.Tensor:
    assert plan.update is not None
    return plan.update.table.write(torch.from_numpy(plan.update.positions), torch.from_numpy(plan.keys))


def make_table(capacity: int) -> KeyTable:
    table = KeyTable(NUM_SLOTS)
    table.capacity = capacity
    return table


# small tables start over, and the smallest grow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.sampled_from([100, 1000, 4000]))
def test_items_read_the_keys_of_a_plan_without_a_table(seed: int, capacity: int) -> None:
    History(np.random.default_rng(seed), make_table(capacity)).run(25)


def test_plain_rounds_are_planned_from_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the equality is that of such plans, too: over splits that begin, and where intervals are full."""
    extended: list[int] = []
    extend_runs = KeyTable.extend_runs

    def count_extended(self: KeyTable, *args: Any) -> Any:
        result = extend_runs(self, *args)
        extended.append(0 if result is None else len(result[0]))
        return result

    monkeypatch.setattr(KeyTable, "extend_runs", count_extended)
    history = History(np.random.default_rng(0), make_table(4000))
    branches = [TokenSequence(length, (0,) * length) for length in (5, 20)]
    for branch in branches:
        history.acquire(branch)
    for num_tokens in ((5, 20), *[(1, 1)] * 150):
        inputs = [
            SequenceInput(branch, count, history.cache.allocate(count), count - 1)
            for branch, count in zip(branches, num_tokens, strict=True)
        ]
        history.decode_round(inputs, "commit")
    assert extended.count(2) > 140
    assert extended.count(0) >= 2


def test_histories_make_tables_start_over_and_grow() -> None:
    """So the equality is not that of tables which only fill up."""
    table, starts = make_table(100), 0
    start_over = table.start_over
    with pytest.MonkeyPatch.context() as patch:
        history = History(np.random.default_rng(3), table)

        def count_starts() -> None:
            nonlocal starts
            starts += 1
            start_over()

        patch.setattr(table, "start_over", count_starts)
        history.run(80)
    assert 100 < table.capacity < 100 << starts  # it started over without growing, too


def open_branches(count: int, context: int) -> tuple[KVCache, list[TokenSequence]]:
    """Branches of one prompt with texts of this length, of which one token is left to be fed."""
    cache, branches = KVCache(SlotPool(context + count * (context + 200))), []
    for arrival in range(count):
        sequence = TokenSequence(arrival, (*range(context // 2), *[arrival] * (context // 2)))
        cache.acquire(sequence, cache.match_prefix(sequence))
        sequence.append_slots(cache.allocate(context // 2 - sequence.num_computed if arrival == 0 else 0))
        if arrival == 0:
            cache.insert(sequence)
        sequence.append_slots(cache.allocate(sequence.num_uncomputed - 1))
        branches.append(sequence)
    return cache, branches


def decode(cache: KVCache, branches: list[TokenSequence], table: KeyTable, *, num_nodes: int = 0) -> int:
    """Runs a round in which no draft node is accepted; returns how many keys it sends."""
    draft = random_draft(np.random.default_rng(0), num_nodes)
    slots: list[Slots] = [cache.allocate(1 + num_nodes) for _ in branches]
    inputs = [SequenceInput(branch, 1, new, 0, draft) for branch, new in zip(branches, slots, strict=True)]
    plan = pack_segments(inputs, TILES, table)[0].segments
    assert plan is not None
    write(plan)
    for branch, new in zip(branches, slots, strict=True):
        branch.append_slots(new[:1])
        branch.append_tokens([7])
        cache.pool.free(new[1:])
    return len(plan.keys)


@pytest.mark.parametrize("num_nodes", [0, 4])
def test_a_steady_round_sends_two_keys_a_branch_and_the_nodes(num_nodes: int) -> None:
    for context in (100, 4000):
        cache, branches = open_branches(3, context)
        table = KeyTable(cache.pool.capacity)
        assert decode(cache, branches, table) == context // 2 + 3 * (context // 2)
        for _ in range(5):
            assert decode(cache, branches, table, num_nodes=num_nodes) == 3 * (2 + num_nodes)


def test_a_branch_that_grows_is_sent_again_a_few_times_only() -> None:
    cache, branches = open_branches(1, 100)
    table = KeyTable(4000)
    sent = sum(decode(cache, branches, table) for _ in range(190))
    # two a round, the context, and a copy of the branch when its room has doubled
    assert sent <= 2 * 190 + 100 + 2 * 240


def test_an_update_that_was_not_written_is_sent_again() -> None:
    cache, branches = open_branches(2, 100)
    table = KeyTable(cache.pool.capacity)
    inputs = [SequenceInput(branch, 1, cache.allocate(1), 0) for branch in branches]
    plans = [pack_segments(inputs, TILES, table)[0].segments for _ in range(2)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert len(plans[0].keys) == len(plans[1].keys) == 150
    write(plans[1])
    plan = pack_segments(inputs, TILES, table)[0].segments
    assert plan is not None
    assert len(plan.keys) == 2


def test_a_table_holds_neither_sequences_nor_nodes() -> None:
    cache, branches = open_branches(2, 100)
    table = KeyTable(cache.pool.capacity)
    decode(cache, branches, table)
    node = branches[0].prefix_node
    assert node is not None
    slots, sequence = weakref.ref(node.slots), weakref.ref(branches[0])
    for branch in branches:
        cache.discard(branch)
    cache.prefix_cache.evict_tokens(1000)
    branches.clear()
    del branch, node
    gc.collect()
    assert sequence() is None
    assert slots() is None


def test_a_table_stays_where_it_is_until_it_grows_and_takes_what_is_counted() -> None:
    table = KeyTable(100)
    cpu = torch.device("cpu")
    tensor = table.open_on(cpu)
    assert table.open_on(cpu) is tensor
    assert tensor.nbytes == KeyTable(0).open_on(cpu).nbytes + 100 * TABLE_BYTES_PER_SLOT
    table.start_over()
    assert table.open_on(cpu) is tensor
    table.start_over()
    assert len(table.open_on(cpu)) == 2 * len(tensor)
    table.release()
    assert table.open_on(cpu) is not tensor

"""In a plan of aligned segments the partial results of a row depend on its position and its own keys alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.model.aligned_segments import plan_aligned_segments
from decoding.model.batch import SequenceInput
from decoding.model.segments import SegmentPlan, SegmentTiles, SequenceRows, plan_segments
from decoding.speculation.draft import Draft
from tests.support.radix_rounds import branches_of_prompt, random_round, seen_slots
from tests.support.segment_plans import Lanes, pack_plan, read_partials


def list_partials(plan: SegmentPlan) -> list[list[Lanes]]:
    """The partial results of each row, in the order in which they are merged."""
    assert (plan.items.first_word == -1).all(), "words hide keys of other branches, which stand in lanes of their own"
    rows = read_partials(plan)
    assert all(lanes for row in rows for lanes in row), "a row has a split in which it sees nothing"
    return rows


def cut_at_borders(slots: list[int], split: int) -> list[Lanes]:
    """What a row that sees these slots, in order of position, must have."""
    return [list(enumerate(slots[start : start + split])) for start in range(0, len(slots), split)]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_sequences=st.integers(1, 12),
    length=st.sampled_from((3, 12, 150)),
    nodes=st.sampled_from((0, 6, 150)),
    num_rows=st.sampled_from((1, 3, 9, 1 << 20)),
    split=st.sampled_from((1, 4, 16, 64, 1 << 20)),
)
def test_a_row_has_the_same_partial_results_in_every_batch(
    seed: int, num_sequences: int, length: int, nodes: int, num_rows: int, split: int
) -> None:
    inputs = random_round(np.random.default_rng(seed), num_sequences, length=length, nodes=nodes)
    tiles = SegmentTiles(num_rows, split, is_aligned=True)
    plan, ordered = pack_plan(inputs, tiles)
    assert sorted(map(id, ordered)) == sorted(map(id, inputs))
    expected = [cut_at_borders(slots, split) for item in ordered for slots in seen_slots(item)]
    assert list_partials(plan) == expected
    assert (plan.items.num_rows <= num_rows).all()
    first_row = 0
    for item in ordered:
        alone, _ = pack_plan([item], tiles)
        assert list_partials(alone) == expected[first_row : first_row + item.num_tokens]
        first_row += item.num_tokens


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((4, 16)))
def test_rows_of_draft_nodes_alone_have_theirs_too(seed: int, split: int) -> None:
    """A draft model feeds levels of nodes whose ancestors have KV already: no row is committed."""
    rng = np.random.default_rng(seed)
    slots, node_slots = np.arange(100, 100 + rng.integers(1, 40)), np.arange(500, 530)
    rows = [sorted(rng.choice(30, rng.integers(1, 12), replace=False).tolist()) for _ in range(5)]
    part = SequenceRows(None, slots, 0, node_slots, [sum(1 << node for node in nodes) for nodes in rows])
    plan, _ = plan_aligned_segments([part], SegmentTiles(3, split, is_aligned=True))
    assert list_partials(plan) == [
        cut_at_borders([*slots.tolist(), *node_slots[nodes].tolist()], split) for nodes in rows
    ]


def test_the_other_plan_depends_on_where_nodes_end() -> None:
    slots = np.arange(40)
    whole = SequenceRows(None, slots, 1)
    drafted = SequenceRows(None, slots[:39], 1, slots[39:], (1,))
    tiles = SegmentTiles(8, 64)
    shapes = [plan_segments([part], tiles)[0].items.num_keys.tolist() for part in (whole, drafted)]
    assert shapes == [[40], [39, 1]]
    aligned = SegmentTiles(8, 64, is_aligned=True)
    of_last = [list_partials(plan_aligned_segments([part], aligned)[0])[-1] for part in (whole, drafted)]
    assert of_last[0] == of_last[1]


@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.parametrize("shared", [512, 700])
def test_whole_splits_of_a_shared_prefix_are_listed_once(count: int, shared: int) -> None:
    plan, _ = pack_plan(branches_of_prompt(count, shared=shared, private=100), SegmentTiles(9, 256, is_aligned=True))
    assert len(plan.keys) == 512 + count * (shared - 512 + 101)
    num_own = -(-(shared - 512 + 101) // 256)
    assert plan.num_splits == 2 * -(-count // 9) + count * num_own


def test_a_chain_of_draft_nodes_is_read_with_the_committed_tokens() -> None:
    (item,) = branches_of_prompt(1, shared=64, private=10)
    parents = tuple(range(-1, 20))
    slots = np.concatenate([item.slots, np.arange(1000, 1021)])
    drafted = SequenceInput(item.sequence, 1, slots, 0, Draft(parents, parents))
    plan, _ = pack_plan([drafted], SegmentTiles(1000, 64, is_aligned=True))
    assert sorted(plan.items.num_keys.tolist()) == [32, 64]
    assert len(plan.keys) == 96

"""A plan of segments covers every pair of a row and a key that it sees once, and lists every key once."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.kv.shared_prefix import group_by_prefix
from decoding.model.batch import SequenceInput, pack_batch, pack_segments
from decoding.model.segments import SegmentPlan, SegmentTiles
from decoding.speculation.draft import Draft
from tests.support.radix_rounds import Inputs, branches_of_prompt, random_round, seen_slots, tokens_by_input
from tests.support.segment_plans import pack_plan, read_partials

LARGE = SegmentTiles(1 << 20, 1 << 20)


def planned_slots(plan: SegmentPlan) -> list[list[int]]:
    """The slots that each row sees by the plan, one partial result after the other: pair by pair."""
    return [[slot for lanes in row for _, slot in lanes] for row in read_partials(plan)]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_sequences=st.integers(1, 12),
    length=st.sampled_from((3, 12, 150)),
    nodes=st.sampled_from((0, 6, 150)),
    tiles=st.sampled_from((SegmentTiles(1, 64), SegmentTiles(3, 64), SegmentTiles(9, 128), LARGE)),
)
def test_every_visible_pair_is_covered_once_and_every_key_listed_once(
    seed: int, num_sequences: int, length: int, nodes: int, tiles: SegmentTiles
) -> None:
    inputs = random_round(np.random.default_rng(seed), num_sequences, length=length, nodes=nodes)
    plan, ordered = pack_plan(inputs, tiles)
    assert sorted(map(id, ordered)) == sorted(map(id, inputs))
    expected = [slots for item in ordered for slots in seen_slots(item)]
    assert planned_slots(plan) == expected  # in order of position
    assert sorted(plan.keys.tolist()) == sorted({slot for slots in expected for slot in slots})
    assert (plan.items.num_rows > 0).all()
    assert (plan.items.num_keys > 0).all()
    assert (plan.items.num_rows <= tiles.num_rows).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_tokens_of_an_input_do_not_depend_on_the_layout(seed: int, num_sequences: int) -> None:
    inputs = random_round(np.random.default_rng(seed), num_sequences)
    in_blocks = pack_batch(inputs, group_by_prefix([item.sequence for item in inputs]))
    assert tokens_by_input(*pack_segments(inputs, LARGE)) == tokens_by_input(*in_blocks)


@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.parametrize("shared", [512, 4096])
def test_a_shared_prefix_is_listed_once_and_cut_by_its_length(count: int, shared: int) -> None:
    plan, _ = pack_plan(branches_of_prompt(count, shared=shared, private=100), SegmentTiles(9, 256))
    assert len(plan.keys) == shared + count * 101
    # tiles of rows x splits of the prefix, and one run of each branch
    assert plan.num_splits == -(-count // 9) * (shared // 256) + count
    assert len(plan.items.order) == -(-count // 9) + count


def test_a_prompt_in_one_pass_has_no_items_above_the_diagonal() -> None:
    plan, _ = pack_plan(branches_of_prompt(1, shared=0, private=0, fed=2048), SegmentTiles(64, 256))
    # 32 tiles of rows: the first four see one split, the next four two, and so on
    assert plan.num_splits == 4 * sum(range(1, 9))
    assert plan.items.num_keys.tolist() == list(range(64, 2049, 64))


def test_a_draft_of_more_than_64_nodes_has_a_word_for_each_64() -> None:
    (item,) = branches_of_prompt(1, shared=64, private=10)
    parents = tuple(range(-1, 149))  # a chain: the last node sees all others
    slots = np.concatenate([item.slots, np.arange(1000, 1150)])
    drafted = SequenceInput(item.sequence, 1, slots, 0, Draft(parents, parents))
    plan, _ = pack_plan([drafted], SegmentTiles(1000, 256))
    assert plan.items.num_keys.tolist() == [11, 64, 64, 22, 64]
    assert plan.words.tolist()[149::150] == [-1, -1, (1 << 22) - 1]


def count_lines(inputs: Inputs) -> int:
    """Lines of Python that planning runs."""
    lines = 0

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        pack_segments(inputs, LARGE)
    finally:
        sys.settrace(before)
    return lines


def test_planning_takes_as_many_lines_of_python_for_any_length_of_context() -> None:
    short, long = (count_lines(branches_of_prompt(8, shared=shared, private=shared)) for shared in (50, 5000))
    assert short == long

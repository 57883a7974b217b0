"""Lists have the keys that each token sees, and say how many of them it has in common with the token before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import group_by_prefix
from decoding.model.backend import TokenBatch
from decoding.model.batch import pack_batch, pack_lists
from decoding.model.key_lists import order_by_prefix
from decoding.model.round_packer import ListPacker
from tests.support.radix_rounds import Inputs, branches_of_prompt, random_round, seen_slots, tokens_by_input


def pack(inputs: Inputs) -> tuple[TokenBatch, Inputs]:
    return pack_lists(inputs, order_by_prefix([item.sequence.prefix_node for item in inputs]))


def listed_slots(batch: TokenBatch) -> list[list[int]]:
    """The slots that each token sees by the lists."""
    assert batch.lists is not None
    key_slots, extra_slots, keys_T = batch.lists
    return [
        [
            *key_slots[keys["start"] : keys["start"] + keys["count"]].tolist(),
            *extra_slots[keys["extra_start"] : keys["extra_start"] + keys["extra_count"]].tolist(),
        ]
        for keys in keys_T
    ]


ROUNDS = {
    "seed": st.integers(0, 2**32),
    "num_sequences": st.integers(1, 12),
    "length": st.sampled_from((3, 12, 150)),
    "nodes": st.sampled_from((0, 6, 70)),
}


@settings(max_examples=150, deadline=None)
@given(**ROUNDS)
def test_every_token_sees_its_keys_in_order_of_position(seed: int, num_sequences: int, length: int, nodes: int) -> None:
    batch, ordered = pack(random_round(np.random.default_rng(seed), num_sequences, length=length, nodes=nodes))
    assert listed_slots(batch) == [slots for item in ordered for slots in seen_slots(item)]


@settings(max_examples=100, deadline=None)
@given(**ROUNDS)
def test_neighbours_have_in_common_what_is_said(seed: int, num_sequences: int, length: int, nodes: int) -> None:
    batch, _ = pack(random_round(np.random.default_rng(seed), num_sequences, length=length, nodes=nodes))
    assert batch.lists is not None
    keys_T, slots = batch.lists.keys_T, listed_slots(batch)
    assert keys_T["common"][0] == 0
    for keys, before, one, other in zip(keys_T[1:], keys_T[:-1], slots[1:], slots[:-1], strict=True):
        assert keys["common"] <= min(keys["count"], before["count"])
        assert one[: keys["common"]] == other[: keys["common"]]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_tokens_are_those_of_blocks(seed: int, num_sequences: int) -> None:
    inputs = random_round(np.random.default_rng(seed), num_sequences)
    in_blocks = pack_batch(inputs, group_by_prefix([item.sequence for item in inputs]))
    assert tokens_by_input(*pack(inputs)) == tokens_by_input(*in_blocks)


@pytest.mark.parametrize("count", [2, 16])
def test_branches_have_their_prompt_in_common(count: int) -> None:
    batch, _ = pack(branches_of_prompt(count, shared=100, private=7))
    assert batch.lists is not None
    assert batch.lists.keys_T["common"].tolist() == [0, *[100] * (count - 1)]


def test_a_packer_finds_another_order_for_other_prefixes() -> None:
    packer: ListPacker[TokenSequence] = ListPacker()
    rng = np.random.default_rng(0)
    for _ in range(20):
        inputs = random_round(rng, 6)
        for _ in range(2):  # the second time from the order that was kept
            batch, ordered = packer.pack_round(inputs)
            assert listed_slots(batch) == [slots for item in ordered for slots in seen_slots(item)]
    packer.forget_rounds()
    assert len(packer.pack_round(inputs)[1]) == len(inputs)

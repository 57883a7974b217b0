"""Groups of sequences that read a common prefix: the cheapest partition, at any depth of the cache."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core import Tokens
from decoding.kv.kv_cache import KVCache
from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import group_by_prefix
from decoding.kv.slots import SlotPool


def add_text(kv: KVCache, number: int, prefix: Tokens, more: Tokens) -> TokenSequence:
    """Puts a text into the cache, then runs it on."""
    sequence = TokenSequence(number, prefix)
    kv.acquire(sequence, kv.match_prefix(sequence))
    sequence.append_slots(kv.allocate(sequence.num_uncomputed))
    kv.insert(sequence)
    sequence.append_tokens(more)
    sequence.append_slots(kv.allocate(len(more)))
    return sequence


def test_siblings_after_thousands_of_steps_are_one_group() -> None:
    tokens: Tokens = (1, 2, 3)
    kv, rng = KVCache(SlotPool(20_000)), np.random.default_rng(0)
    for step in range(1500):
        siblings = [add_text(kv, 2 * step + i, tokens, tuple(rng.integers(5, 400, 3).tolist())) for i in range(2)]
        (group,) = group_by_prefix(siblings)
        assert group.members == (0, 1)
        assert group.shared_length == len(tokens)
        for sibling in siblings:
            kv.release(sibling)
        tokens = tuple(siblings[0].tokens)


@pytest.mark.parametrize("seed", range(5))
def test_every_sequence_is_in_one_group_with_a_prefix_that_its_members_share(seed: int) -> None:
    rng, kv, texts = np.random.default_rng(seed), KVCache(SlotPool(100_000)), list[Tokens]()
    for _ in range(40):
        start = texts[rng.integers(len(texts))] if texts else ()
        texts.append((*start[: rng.integers(len(start) + 1)], *rng.integers(5, 9, rng.integers(1, 200)).tolist()))
    sequences = [add_text(kv, i, text, (1,)) for i, text in enumerate(texts)]
    groups = group_by_prefix(sequences)
    assert sorted(i for group in groups for i in group.members) == list(range(40))
    for group in groups:
        shared = {tuple(texts[i][: group.shared_length]) for i in group.members}
        slots = {tuple(sequences[i].slots[: group.shared_length]) for i in group.members}
        assert len(shared) == len(slots) == 1
        assert len(shared.pop()) == group.shared_length
    assert any(len(group.members) > 1 for group in groups)

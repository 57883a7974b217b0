"""Rounds over random radix trees: sequences with cached prefixes, private tokens, tokens to feed and drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.core import Tokens
from decoding.kv.kv_cache import KVCache
from decoding.kv.sequence import TokenSequence
from decoding.kv.slots import SlotPool
from decoding.model.backend import TokenBatch
from decoding.model.batch import EMPTY_DRAFT, SequenceInput
from decoding.speculation.draft import Draft

Inputs = list[SequenceInput[TokenSequence]]


def random_round(
    rng: np.random.Generator, num_sequences: int, *, length: int = 12, nodes: int = 5, num_slots: int = 20_000
) -> Inputs:
    """Returns inputs of all kinds over one cache: some fill a prompt, others feed a draft of up to `nodes` too.

    `length` is the most tokens that a text adds to the beginning of another one.
    """
    cache = KVCache(SlotPool(num_slots))
    texts: list[Tokens] = []
    for _ in range(num_sequences):
        texts.append(_extend_text(rng, texts, length))
        if rng.random() < 0.5:
            _cache_text(cache, texts[-1])
    inputs = []
    for arrival, text in enumerate(texts):
        sequence = TokenSequence(arrival, _extend_text(rng, [text], int(rng.choice([3, length]))))
        cache.acquire(sequence, cache.match_prefix(sequence))
        # the last token is never computed: its output is what a round is for
        num_private = int(rng.integers(sequence.num_uncomputed)) if rng.random() < 0.6 else 0
        sequence.append_slots(cache.allocate(num_private))
        uncomputed = sequence.num_uncomputed
        num_committed = uncomputed if rng.random() < 0.5 else int(rng.integers(1, uncomputed + 1))
        draft = random_draft(rng, int(rng.integers(nodes + 1))) if num_committed == uncomputed else EMPTY_DRAFT
        slots = cache.allocate(num_committed + len(draft))
        inputs.append(SequenceInput(sequence, num_committed, slots, int(rng.integers(num_committed)), draft))
    return inputs


def random_draft(rng: np.random.Generator, nodes: int) -> Draft:
    """Returns a draft in which chains are as likely as branches."""
    parents = [int(rng.integers(max(-1, i - 3), i)) for i in range(nodes)]
    return Draft(tuple(range(nodes)), tuple(parents))


def seen_slots(item: SequenceInput[TokenSequence]) -> list[list[int]]:
    """Returns the slots that each row must see, in order of position, its own last."""
    before, fed = item.sequence.slots.tolist(), item.slots.tolist()
    rows = [before + fed[: row + 1] for row in range(item.num_committed)]
    for node in range(len(item.draft)):
        rows.append(
            rows[item.num_committed - 1] + [fed[item.num_committed + above] for above in item.draft.path_to(node)]
        )
    return rows


def tokens_by_input(batch: TokenBatch, ordered: Inputs) -> dict[int, list[list[int]]]:
    """Returns by arrival id, position and slot of each token, and whether its output is needed."""
    ends = np.cumsum([item.num_tokens for item in ordered])
    is_output = np.isin(np.arange(ends[-1]), batch.logits_indices)
    rows = np.stack([batch.tokens_T, batch.positions_T, batch.slots_T, is_output], axis=1)
    return {item.sequence.arrival: part.tolist() for item, part in zip(ordered, np.split(rows, ends[:-1]), strict=True)}


def branches_of_prompt(count: int, *, shared: int, private: int, fed: int = 1) -> Inputs:
    """Returns inputs of branches of one cached prompt, which feed `fed` tokens each."""
    cache = KVCache(SlotPool(shared + count * (private + fed) + 1))
    prompt = TokenSequence(-1, tuple(range(shared)))
    cache.acquire(prompt, cache.match_prefix(prompt))
    prompt.append_slots(cache.allocate(shared))
    cache.release(prompt)
    inputs: Inputs = []
    for arrival in range(count):
        sequence = TokenSequence(arrival, (*range(shared), *(shared + arrival for _ in range(private + fed))))
        cache.acquire(sequence, cache.match_prefix(sequence))
        sequence.append_slots(cache.allocate(private))
        inputs.append(SequenceInput(sequence, fed, cache.allocate(fed), 0))
    return inputs


def _extend_text(rng: np.random.Generator, texts: Sequence[Tokens], length: int) -> Tokens:
    text = texts[int(rng.integers(len(texts)))] if texts else ()
    new = rng.integers(0, 100, rng.integers(1, length + 1))
    return (*text[: rng.integers(len(text) + 1)], *new.tolist())


def _cache_text(cache: KVCache, text: Tokens) -> None:
    sequence = TokenSequence(-1, text)
    cache.acquire(sequence, cache.match_prefix(sequence))
    sequence.append_slots(cache.allocate(len(text) - sequence.num_computed))
    cache.release(sequence)

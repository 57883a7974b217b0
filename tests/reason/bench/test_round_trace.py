"""A traced round keeps to its budgets, counts the model's own weights and products, and grows with the batch.

`BUDGETS` are upper bounds of what the engine does today. Lower them when it does less.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import SamplingParams
from decoding.speculation.draft import Draft
from reason.bench.cards import Card, find_card
from reason.bench.meta_model import MetaBackend
from reason.bench.puppet import BodyShape, find_shape
from reason.bench.round_contexts import BestOfNContexts, BranchContext, ContextSource, SearchContexts, draw_drafts
from reason.bench.round_trace import PHASES, trace_round, trace_source

TINY = BodyShape(64, 128, 2, 4, 2, 100, has_tied_head=False)
PLAIN, FILTERED = SamplingParams(), SamplingParams(temperature=0.6, top_p=0.95)


class RoundBudget(NamedTuple):
    """What a round of the 7B model may do at most: kernels a layer and outside the layers, copies in, waits."""

    attention: str
    source: ContextSource
    nodes: int
    params: SamplingParams
    layer_launches: float
    other_launches: int
    copies_in: int
    waits: int


BUDGETS = (
    RoundBudget("blocks", BestOfNContexts(1), 0, PLAIN, 25.1, 10, 5, 1),
    RoundBudget("blocks", BestOfNContexts(64), 0, PLAIN, 29.1, 15, 6, 1),
    RoundBudget("blocks", SearchContexts(64), 0, PLAIN, 234, 90, 44, 1),
    RoundBudget("segments", BestOfNContexts(1), 0, PLAIN, 10.1, 11, 2, 1),
    RoundBudget("segments", BestOfNContexts(64), 4, PLAIN, 10.1, 21, 2, 1),
    RoundBudget("segments", SearchContexts(64), 0, PLAIN, 10.1, 11, 2, 1),
    RoundBudget("segments", SearchContexts(64), 4, FILTERED, 10.1, 23, 2, 1),
)


@cache
def open_backend(shape: str, attention: str, numerics: str = "fast") -> MetaBackend:
    return MetaBackend(TINY if shape == "tiny" else find_shape(shape), attention=attention, numerics=numerics)


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: f"{b.attention}-{b.source.name}-{b.source.branches}")
def test_a_round_keeps_to_its_budget(budget: RoundBudget) -> None:
    backend = open_backend("qwen2.5-7b", budget.attention)
    trace = trace_source(backend, budget.source, nodes=budget.nodes, params=budget.params)
    card = find_card("h100")
    in_layers = trace.sum_phase("layers", card).launches
    assert round(trace.layer_launches, 1) <= budget.layer_launches
    assert trace.launches - in_layers <= budget.other_launches
    assert len(trace.copies_in) <= budget.copies_in
    assert 1 <= trace.waits <= budget.waits  # the sampled tokens must reach the host
    assert sum(trace.sum_phase(phase, card).launches for phase in PHASES) == trace.launches
    assert trace.roofline_seconds(card) <= trace.device_seconds(card) <= trace.estimate_seconds(card, 7.5)


@pytest.mark.parametrize("path", [("blocks", "fast"), ("segments", "fast"), ("segments", "invariant")], ids=str)
@pytest.mark.parametrize("branches", [1, 5])
def test_every_weight_is_read_once_and_only_once(branches: int, path: tuple[str, str]) -> None:
    trace = trace_source(open_backend("qwen2.5-7b", *path), BestOfNContexts(branches, 16, 20))
    # by hand: q, k, v with their biases, out, gate, up, down and two norms a layer; the final norm, and the head
    layer = 3584 * (3584 + 2 * 512) + 3584 + 2 * 512 + 3584 * 3584 + 3 * 3584 * 18944 + 2 * 3584
    assert trace.weight_bytes_read == trace.weight_bytes == 2 * (28 * layer + 3584 + 152064 * 3584)


def test_products_and_head_agree_with_a_count_by_hand() -> None:
    # 9 keys of a prefix and 4 generated ones, one of them in the first round: the row that is fed sees 13 keys
    trace = trace_round(open_backend("tiny", "blocks"), [BranchContext(0, tuple(range(1, 10)), 3)])
    card = Card("unit", 1.0, 1.0)
    per_layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    attention = 2 * 2 * 13 * 64  # scores and values, 13 keys, 4 heads of 16
    assert sum(kernel.flops for kernel in trace.kernels) == 2 * 2 * per_layer + 2 * attention + 2 * 64 * 100
    assert trace.minimum_flops == sum(kernel.flops for kernel in trace.kernels)
    assert trace.sum_phase("head", card).bytes_moved == 2 * (64 + 64 * 100 + 100)
    assert trace.resident == 13
    kv = 2 * 2 * 2 * 16 * 2  # two layers, K and V of two heads of 16, two bytes
    assert trace.kv_bytes == kv
    assert trace.roofline_seconds(Card("slow memory", 1.0, 1e30)) == trace.weight_bytes + 13 * kv


def test_invariant_numerics_have_as_many_launches_and_products() -> None:
    fast, invariant = (
        trace_source(open_backend("qwen2.5-7b", "segments", numerics), BestOfNContexts(4, 16, 20))
        for numerics in ("fast", "invariant")
    )
    assert invariant.layer_launches == fast.layer_launches
    # the logits of the head are float32 already, and no keys are written to a table
    assert invariant.launches == fast.launches - 2
    products = [
        # attention apart: keys since the last border are read by each branch
        [kernel.flops for kernel in trace.kernels if kernel.flops and "attend" not in kernel.name]
        for trace in (fast, invariant)
    ]
    assert products[0] == products[1]


@pytest.mark.parametrize("branches", [1, 3])
def test_segments_read_each_key_of_a_shared_prefix_once(branches: int) -> None:
    moved = []
    for length in (100, 200):  # both are one item
        contexts = [BranchContext(0, tuple(range(1, length + 1)), 5)] * branches
        trace = trace_round(open_backend("tiny", "segments"), contexts)
        kernels = [kernel for kernel in trace.kernels if kernel.name == "decoding::attend_segments"]
        assert [kernel.launches for kernel in kernels] == [2, 2]  # one call a layer
        moved.append(kernels[0].bytes_moved)
    key_bytes = 2 * 2 * 16 * 2 + 4  # K and V of two heads of 16 in bfloat16, and the slot's number
    assert moved[1] - moved[0] == 100 * key_bytes


def test_bytes_between_the_products_agree_with_a_count_by_hand() -> None:
    trace = trace_round(open_backend("tiny", "segments"), [BranchContext(0, (1, 2, 3), 2)])
    moved = {kernel.name.removeprefix("decoding::"): kernel.bytes_moved for kernel in trace.kernels}
    # one row in bfloat16: x and the weights, and the norm; the sum reads and writes one row more
    assert moved["norm"] == 2 * (64 + 64 + 64)
    assert moved["add_and_norm"] == 2 * (64 + 64 + 64 + 64 + 64)
    assert moved["multiply_by_silu"] == 2 * (2 * 128 + 128)
    # 4 + 2 + 2 heads of 16 and their biases, cos and sin in float32, the slot; 4 heads of queries, 2 of K and V
    assert moved["rotate_and_store"] == 2 * (8 * 16 + 8 * 16) + 4 * 2 * 16 + 8 + 2 * (4 * 16 + 2 * 2 * 16)


@pytest.mark.parametrize("attention", ["blocks", "segments"])
def test_what_is_copied_to_the_host_does_not_grow_with_the_context(attention: str) -> None:
    backend = open_backend("tiny", attention)
    drafts = draw_drafts(4, 3, np.random.default_rng(0))
    sizes = []
    for length in (10, 2000):
        contexts = [BranchContext(0, tuple(range(1, length + 1)), length) for _ in range(4)]
        trace = trace_round(backend, contexts, drafts)
        sizes.append([(copy.size_bytes, copy.phase) for copy in trace.copies_out])
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("nodes", [0, 3])
def test_what_is_copied_to_the_device_does_not_grow_with_the_context(nodes: int) -> None:
    backend = open_backend("tiny", "segments")
    drafts = draw_drafts(4, nodes, np.random.default_rng(0)) if nodes else ()
    sizes = []
    for length in (500, 16_000):
        contexts = [BranchContext(0, tuple(range(1, 101)), length - 100) for _ in range(4)]
        trace = trace_round(backend, contexts, drafts)
        sizes.append([copy.size_bytes for copy in trace.copies_in])
    assert sizes[0] == sizes[1]
    assert sum(sizes[0]) < 4 * (1 + nodes) * 300


PROBLEMS = st.tuples(st.integers(1, 200), st.lists(st.integers(1, 300), min_size=1, max_size=4))


@pytest.mark.parametrize("attention", ["blocks", "segments"])
@settings(max_examples=15, deadline=None)
@given(problems=st.lists(PROBLEMS, min_size=1, max_size=4))
def test_one_more_problem_never_lowers_launches(attention: str, problems: list[tuple[int, list[int]]]) -> None:
    contexts = [
        BranchContext(number, tuple(range(1 + 1000 * number, 1 + 1000 * number + prompt)), generated)
        for number, (prompt, steps) in enumerate(problems)
        for generated in steps
    ]
    backend = open_backend("tiny", attention)
    fewer = [context for context in contexts if context.problem < len(problems) - 1]
    more, before = trace_round(backend, contexts), trace_round(backend, fewer) if fewer else None
    assert more.rows == len(contexts)
    assert before is None or before.launches <= more.launches


@settings(max_examples=25, deadline=None)
@given(
    problems=st.lists(PROBLEMS, min_size=1, max_size=8),
    nodes=st.integers(0, 8),
    params=st.sampled_from([PLAIN, FILTERED]),
    seed=st.integers(0, 99),
)
def test_no_batch_launches_more_than_sixteen_kernels_a_layer(
    problems: list[tuple[int, list[int]]], nodes: int, params: SamplingParams, seed: int
) -> None:
    contexts = [
        BranchContext(number, tuple(range(1 + 1000 * number, 1 + 1000 * number + prompt)), generated)
        for number, (prompt, steps) in enumerate(problems)
        for generated in steps
    ]
    drafts = draw_drafts(len(contexts), nodes, np.random.default_rng(seed)) if nodes else ()
    trace = trace_round(open_backend("tiny", "segments"), contexts, drafts, params=params)
    assert trace.rows == len(contexts) * (1 + nodes)
    assert trace.layer_launches <= 16
    assert trace.waits == 1


@given(branches=st.integers(1, 8), nodes=st.integers(1, 12), seed=st.integers(0, 99))
def test_drawn_drafts_are_trees_of_the_nodes_asked_for(branches: int, nodes: int, seed: int) -> None:
    drafts = draw_drafts(branches, nodes, np.random.default_rng(seed))
    assert sum(map(len, drafts)) == branches * nodes
    for draft in drafts:
        draft.assert_invariants()


def test_a_traced_round_feeds_every_node_of_the_drafts() -> None:
    drafts = [Draft((3, 4), (-1, 0)), Draft()]
    contexts = [BranchContext(0, (1, 2, 3), 2)] * 2
    trace = trace_round(open_backend("tiny", "segments"), contexts, drafts)
    embedding = next(kernel for kernel in trace.kernels if kernel.phase == "layers")
    assert trace.rows == 4
    assert embedding.bytes_moved == 4 * (2 * 64 * 2 + 8)  # four rows of 64 numbers, read and written, and their ids


def test_a_card_without_speed_is_refused() -> None:
    with pytest.raises(ValueError, match="bandwidth of a card"):
        Card("none", 0.0, 1e12)
    with pytest.raises(ValueError, match="h100"):
        find_card("abacus")

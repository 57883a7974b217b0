"""Nodes that a draft model is run over: few, and nearly as good as all of them."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core import SamplingParams
from decoding.model.transformers_checkpoint import HFBackend
from decoding.speculation.drafters import tree_builder
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.feeding import limit_feeding, predict_floor, select_fed_rows
from decoding.speculation.drafters.hybrid import HybridSource
from decoding.speculation.drafters.score_fallback import ScoreFallback
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, DraftPlan
from tests.support.random_models import random_model

NO_COSTS = np.empty(0)


def model() -> DraftModel:
    backend = HFBackend(random_model("qwen2", vocab_size=97), device="cpu", decoder="eager")
    return DraftModel(backend, k=8, kv_bytes=1 << 24)


def sum_expected(source: DraftSource, temperature: float, count: int, total: int) -> float:
    """Returns the tokens that are expected to be accepted."""
    drafter = TreeDrafter(source, width=8, depth=30)
    params = SamplingParams(temperature=temperature)
    branches = [Branch(i, "", (i, 5, 7, i, 5), i, params, 40) for i in range(count)]
    return sum(sum(draft.path_probabilities) for draft in drafter.propose(branches, DraftPlan((total,) * count, total)))


@pytest.mark.parametrize("temperature", [0.1, 0.3, 1.0])
@pytest.mark.parametrize(("count", "total"), [(1, 8), (1, 64), (4, 64), (16, 160)])
def test_drafts_are_nearly_as_good_as_with_all_nodes_fed(
    temperature: float, count: int, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model()
    expected = sum_expected(source, temperature, count, total)
    assert source.num_fed_tokens <= 5 * count + limit_feeding(total)
    monkeypatch.setattr(tree_builder, "mark_passes", lambda source, state: None)
    assert expected > 0.9 * sum_expected(model(), temperature, count, total)


def test_contexts_without_a_model_have_no_limit() -> None:
    branches = [Branch(0, "", (1, 2, 3), 0, SamplingParams(), 40)]
    hybrid = HybridSource((model(), SuffixDecoding()), first_levels=1)
    state = hybrid.root_states(branches)
    child = hybrid.advance(state, np.array([4]))
    assert hybrid.needs_pass(child) is None
    alone = HybridSource((SuffixDecoding(), model()))
    child = alone.advance(alone.root_states(branches), np.array([4]))
    mask = alone.needs_pass(child)
    assert mask is not None
    assert mask.tolist() == [True]
    for least, takes_pass in ((0.0, False), (1e6, True)):
        fallback = ScoreFallback((SuffixDecoding(), model()), least_score=least)
        below = fallback.advance(fallback.root_states(branches), np.array([4]))
        assert fallback.needs_pass(below).tolist() == [takes_pass]


def test_where_all_may_be_kept_all_are_fed() -> None:
    probability_F = np.array([0.9, 0.01, 0.001], dtype=np.float32)
    assert select_fed_rows(probability_F, probability_F, 0.5, 3, 1, 100, NO_COSTS, 64).tolist() == [0, 1, 2]


def test_a_sure_chain_is_fed_alone() -> None:
    probability_F = np.array([0.95, 0.02, 0.02], dtype=np.float32)
    assert select_fed_rows(probability_F, probability_F, 0.95, 30, 1, 8, NO_COSTS, 64).tolist() == [0]
    seconds_N = np.linspace(1.0, 21.0, 101)
    assert select_fed_rows(probability_F, probability_F, 0.95, 30, 1, 100, seconds_N, 64).tolist() == [0]


def test_the_likeliest_rows_keep_their_order() -> None:
    probability_F = np.array([0.3, 0.9, 0.1, 0.9, 0.5], dtype=np.float32)
    for most, rows in ((3, [1, 3, 4]), (1, [1]), (0, []), (9, [0, 1, 2, 3, 4])):
        assert select_fed_rows(probability_F, probability_F, 0.5, 1, 1, 1000, NO_COSTS, most).tolist() == rows


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("levels", [0, 1, 40])
def test_a_floor_is_always_found(ratio: float, levels: int) -> None:
    probability_F = np.array([1.0, 0.5, 1e-30], dtype=np.float32)
    for total, seconds_N in ((0, NO_COSTS), (1, NO_COSTS), (64, np.ones(1)), (64, np.linspace(1.0, 65.0, 65))):
        assert 0 < predict_floor(probability_F, probability_F, ratio, levels, 2, total, seconds_N) <= 0.5

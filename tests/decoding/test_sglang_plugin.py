"""The adapter of our speculation to SGLang, without SGLang; tests/sglang runs it in real servers."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core import SamplingParams
from decoding.noise import noise_keys
from decoding.sglang_plugin import requests
from decoding.sglang_plugin.parts import RuleName, make_parts
from decoding.sglang_plugin.requests import RequestReader
from decoding.sglang_plugin.trees import flatten_trees, sampling_rows, to_committed_arrays
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, Feedback
from decoding.speculation.target_logits import TargetLogits
from reason.engines.sglang_client import wire


def sampling(**changes: Any) -> SimpleNamespace:
    fields = {
        "max_new_tokens": 9,
        "temperature": 0.7,
        "top_k": 1 << 30,
        "top_p": 0.9,
        "min_p": 0.0,
        "sampling_seed": -5,
        "custom_params": {"problem_id": "p"},
    }
    return SimpleNamespace(**(fields | changes))


def request(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(rid="r", origin_input_ids=[1, 2], output_ids=[3], sampling_params=sampling(**changes))


def branch(*tokens: int, remaining: int = 99, seed: int = 7) -> Branch:
    return Branch(0, "p", tokens, seed, SamplingParams(), remaining)


def to_branch(served: SimpleNamespace, *late_tokens: int) -> Branch:
    return RequestReader().to_branches([served], [late_tokens])[0]


def test_every_field_of_a_request_is_read() -> None:
    made = to_branch(request(), 4, 5)
    assert (made.tokens[:], made.group, made.seed, made.remaining) == ((1, 2, 3, 4, 5), "p", -5, 6)
    assert made.params == SamplingParams(max_tokens=9, temperature=0.7, top_p=0.9)


def test_top_k_of_one_is_temperature_zero() -> None:
    assert to_branch(request(temperature=1.0, top_k=1)).params.temperature == 0


@pytest.mark.parametrize("temperature", [2e-6, 5.0, 1e6])
def test_whatever_the_server_takes_is_taken(temperature: float) -> None:
    params = to_branch(request(temperature=temperature, max_new_tokens=1 << 40, top_p=1.0)).params
    assert params.temperature == pytest.approx(min(max(temperature, 1e-5), 100.0))


def test_a_foreign_request_has_a_random_seed_and_no_group() -> None:
    made = to_branch(request(custom_params=None, sampling_seed=None))
    assert made.group == ""
    assert made.seed == to_branch(request(custom_params=None, sampling_seed=None)).seed > 0


def test_requests_are_read_as_they_are_in_each_round() -> None:
    reader, first, second = RequestReader(), request(), request(max_new_tokens=20)
    second.rid = "other"
    before = reader.to_branches([first, second])
    first.output_ids += [4, 5]
    after = reader.to_branches([second, first])
    assert [tuple(made.tokens) for made in before] == [(1, 2, 3), (1, 2, 3)]
    assert [(tuple(made.tokens), made.remaining) for made in after] == [((1, 2, 3), 19), ((1, 2, 3, 4, 5), 6)]


def test_a_batch_without_requests_has_no_branches() -> None:
    assert RequestReader().to_branches([]) == RequestReader().to_branches([], []) == []


def test_an_id_that_comes_again_is_another_request() -> None:
    reader = RequestReader()
    for seed in (5, 6):
        assert reader.to_branches([request(sampling_seed=seed)])[0].seed == seed


def test_ended_requests_are_forgotten() -> None:
    reader, ended = RequestReader(), request()
    reader.to_branches([ended])
    for number in range(200):
        later = request()
        later.rid = str(number)
        reader.to_branches([later])
    assert not any(referrer for referrer in gc.get_referrers(ended) if isinstance(referrer, tuple))


def test_client_and_plugin_use_the_same_problem_key() -> None:
    assert requests.PROBLEM_KEY == wire.PROBLEM_KEY


def test_signed_seed_has_the_noise_of_the_unsigned_seed() -> None:
    seeds = [0, 5, 2**63 - 1, 2**63, 2**64 - 1]
    sent = [wire.to_signed_64(seed) for seed in seeds]
    assert all(-(2**63) <= seed < 2**63 for seed in sent)
    assert (noise_keys(seeds, range(5)) == noise_keys(sent, range(5))).all()


def test_flattened_trees_mask_all_but_ancestors_and_padding() -> None:
    tokens, visible, depths = flatten_trees([branch(1, 2), branch(3)], [Draft((5, 6, 9), (-1, 0, 0)), Draft()], nodes=5)
    assert depths.tolist() == [0, 1, 2, 2, 0] + [0] * 5
    assert tokens.reshape(2, 5).tolist() == [[2, 5, 6, 9, 2], [3, 3, 3, 3, 3]]
    first, second = visible.reshape(2, 5, 5).astype(int)
    assert first.tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert (second == np.eye(5)).all()


def test_node_samples_with_the_noise_of_its_depth() -> None:
    branches = [branch(1, 2, 3), branch(4, seed=-9)]
    trees = flatten_trees(branches, [Draft((5, 6, 9), (-1, 0, 0)), Draft()], nodes=4)
    rows = sampling_rows(branches, trees.depths)
    assert (rows.keys_T2 == noise_keys([7] * 4 + [-9] * 4, [3, 4, 5, 5, 1, 1, 1, 1])).all()


def test_committed_arrays_hold_the_path_that_the_rule_accepted() -> None:
    """Logits that force 5, 9, 8 after the anchor, whose tree holds 5 then 6 or 9."""
    forced = torch.full((2 * 4, 10), -50.0)
    for row, token in ((0, 5), (1, 9), (3, 8), (4, 2)):
        forced[row, token] = 50.0
    branches, drafts = [branch(1), branch(4)], [Draft((5, 6, 9), (-1, 0, 0)), Draft()]
    target = TargetLogits(forced, sampling_rows(branches, flatten_trees(branches, drafts, 4).depths), (0, 4))
    committed_tokens, lengths, accepted_rows = to_committed_arrays(
        Coupled().verify_drafts(branches, drafts, target), nodes=4
    )
    assert lengths.tolist() == [3, 1]
    assert [committed_tokens[row] for row in accepted_rows[0] if row >= 0] == [5, 9, 8]
    assert accepted_rows.tolist() == [[0, 1, 3, -1], [4, -1, -1, -1]]
    assert committed_tokens[4] == 2


@pytest.mark.parametrize("rule", ["coupled", "recursive_rejection"])
def test_acceptance_rule_gets_drafts_of_supported_sampling_within_bounds(rule: RuleName) -> None:
    made = make_parts(6, rule)
    text = branch(*[1, 2, 3, 4] * 6, remaining=3)
    ids = np.array([[1, 2, 3], [2, 3, 4]])
    logprobs = np.log(np.array([[0.5, 0.3, 0.2]] * 2, dtype=np.float32))
    made.drafter.observe([Feedback(text, Draft((1,), (-1,)), (), ids, logprobs)])
    (draft,) = made.draft_trees([text])
    draft.assert_invariants()
    assert 0 < len(draft) <= 6
    assert max(draft.depths) <= 2
    logits = torch.zeros(7, 10)
    rows = sampling_rows([text], flatten_trees([text], [draft], 7).depths)
    (outcome,) = made.acceptance.verify_drafts([text], [draft], TargetLogits(logits, rows, (0,)))
    assert len(outcome.tokens) >= 1


def test_branch_with_one_token_remaining_gets_no_draft() -> None:
    assert make_parts(6, "coupled").draft_trees([branch(*[1, 2, 3, 4] * 6, remaining=1)]) == [Draft()]

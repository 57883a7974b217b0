"""Lossy rules: which nodes pass, which path wins, and that at worst they are what a lossless rule accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import SamplingParams
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.deepest_path import find_deepest_path
from decoding.speculation.acceptance.greedy_match import GreedyMatch
from decoding.speculation.acceptance.judge import Judge
from decoding.speculation.acceptance.typical import Typical
from decoding.speculation.acceptance.uniform_stream import Vector
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import AcceptanceRule
from tests.support.acceptance_rules import make_target, sample_drafts, verify_with
from tests.support.enumeration import Instance, tokens_after

COLD, WARM = SamplingParams(temperature=0.0), SamplingParams()
HIDDEN = 3


def verify_hidden(
    judge: Judge, instance: Instance, drafts: Sequence[Draft], params: SamplingParams = WARM
) -> tuple[list[VerifyResult], np.ndarray]:
    """Returns the results with random hidden states `[W, 3]`, and these states."""
    branches, target = make_target(instance, drafts, params)
    hidden = torch.from_numpy(np.random.default_rng(3).normal(size=(len(target.logits_WV), HIDDEN))).float()
    return judge.verify_drafts(branches, drafts, replace(target, hidden_WD=hidden)), hidden.numpy()


def judge_of(bias: float, threshold: float = 0.5) -> Judge:
    return Judge(np.array([1.0, -2.0, 0.5], dtype=np.float32), bias, threshold)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Draft, np.ndarray, np.ndarray]:
    size = draw(st.integers(0, 9))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    accepted = np.array([draw(st.booleans()) for _ in range(size)], dtype=np.bool_)
    likelihood = np.array([draw(st.sampled_from([-3.0, -1.0, -0.5, -0.25])) for _ in range(size)])
    return Draft(tuple(range(size)), parents), accepted, likelihood


@given(trees())
def test_the_deepest_path_of_accepted_nodes_wins_and_of_equals_the_likeliest(
    case: tuple[Draft, np.ndarray, np.ndarray],
) -> None:
    draft, accepted, likelihood = case
    every = [draft.path_to(node) for node in range(-1, len(draft))]
    legal = {path: (len(path), likelihood[list(path)].sum()) for path in every if accepted[list(path)].all()}
    winner = find_deepest_path(draft, accepted, likelihood)
    assert winner in legal
    assert legal[winner] == max(legal.values())


@pytest.mark.parametrize("params", [COLD, WARM, SamplingParams(temperature=0.7, top_k=2)], ids=str)
@pytest.mark.parametrize("rule", [Typical(), Typical(next_token="greedy"), Typical(epsilon=0.4, delta=0.9)], ids=str)
def test_typical_accepts_above_its_threshold_and_the_targets_own_token(rule: Typical, params: SamplingParams) -> None:
    """The paper's rule by brute force, in float64, from the distributions themselves."""
    instance = Instance.random(5, length=4, number=float)
    drafts = [Draft(), *sample_drafts("likely", (2, 2, 1), instance, 40)]
    results, (_, target) = verify_with(rule, instance, drafts, params=params), make_target(instance, drafts, params)
    num_refused = 0
    for draft, result, first in zip(drafts, results, target.first_rows, strict=True):
        p_after = {
            node: process(instance.p[tokens_after(draft, node)], params.temperature, params.top_k)
            for node in range(-1, len(draft))
        }
        chosen = {node: int(target.tokens[first + 1 + node]) for node in p_after}
        if rule.next_token == "greedy":
            chosen = {node: int(np.argmax(p)) for node, p in p_after.items()}
        passes, likelihood = [], []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            p = p_after[parent]
            entropy = -sum(x * np.log(x) for x in p if x > 0)
            is_typical = p[token] > min(rule.epsilon, rule.delta * np.exp(-entropy))
            passes.append(is_typical or token == chosen[parent])
            likelihood.append(np.log(max(p[token], 1e-30)))
        path = find_deepest_path(draft, np.array(passes, dtype=np.bool_), np.array(likelihood))
        assert result.accepted_nodes == path
        assert result.tokens[-1] == chosen[path[-1] if path else -1]
        num_refused += len(passes) - sum(passes)
    assert num_refused


def process(p: Vector, temperature: float, top_k: int) -> Vector:
    """Returns the distribution that a request samples from."""
    logits = np.log(np.maximum(p, 1e-30)) / (temperature or 1e-3)
    weights = np.where(logits >= np.sort(logits)[-top_k], np.exp(logits - logits.max()), 0)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("next_token", ["sampled", "greedy"])
def test_typical_at_temperature_zero_is_greedy_decoding(next_token: str) -> None:
    for seed in range(6):
        instance = Instance.random(seed, number=float)
        drafts = [Draft(), *sample_drafts("iid", (2, 2), instance, 20)]
        rule = Typical(next_token=next_token)
        assert verify_with(rule, instance, drafts, params=COLD) == verify_with(
            GreedyMatch(), instance, drafts, params=COLD
        )


def test_a_lower_threshold_accepts_more() -> None:
    instance = Instance.random(8, number=float)
    drafts = sample_drafts("without_replacement", (2, 2), instance, 60)

    def count_accepted(rule: AcceptanceRule) -> int:
        return sum(len(result.accepted_nodes) for result in verify_with(rule, instance, drafts))

    strict, loose = Typical(epsilon=0.8, delta=0.9), Typical(epsilon=0.05, delta=0.05)
    assert count_accepted(Coupled()) < count_accepted(strict) < count_accepted(loose)


def test_without_drafts_typical_samples_as_plain_decoding_does() -> None:
    instance = Instance.random(1, number=float)
    assert verify_with(Typical(), instance, [Draft()] * 30) == verify_with(Coupled(), instance, [Draft()] * 30)


@pytest.mark.parametrize("params", [COLD, WARM], ids=str)
def test_a_judge_that_refuses_everything_leaves_coupled_acceptance(params: SamplingParams) -> None:
    instance = Instance.random(3, number=float)
    drafts = [Draft(), *sample_drafts("likely", (2, 2), instance, 30)]
    refused, _ = verify_hidden(judge_of(-1e6), instance, drafts, params)
    assert refused == verify_with(Coupled(), instance, drafts, params=params)
    passed, _ = verify_hidden(judge_of(1e6), instance, drafts, params)
    assert all(len(result.accepted_nodes) == 2 for result in passed[1:])


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
def test_a_judge_reads_the_state_at_the_draft_token_itself(threshold: float) -> None:
    instance = Instance.random(3, length=4, number=float)
    drafts, judge = sample_drafts("likely", (1, 1, 1), instance, 40), judge_of(0.3, threshold)
    results, hidden = verify_hidden(judge, instance, drafts)
    _, target = make_target(instance, drafts, WARM)
    num_overruled = 0
    for draft, result, first in zip(drafts, results, target.first_rows, strict=True):
        rows = slice(first + 1, first + 1 + len(draft))
        right = 1 / (1 + np.exp(-(hidden[rows] @ judge.weight_D + judge.bias))) > threshold
        is_own = target.tokens[first : first + len(draft)] == np.array(draft.tokens)
        passes = right | is_own
        depth = len(draft) if passes.all() else int(np.argmin(passes))
        assert result.accepted_nodes == tuple(range(depth))
        assert result.tokens == (*draft.tokens[:depth], int(target.tokens[first + depth]))
        num_overruled += int((right & ~is_own)[:depth].sum())
    assert num_overruled


def test_a_judge_for_another_model_is_refused_with_what_to_do() -> None:
    instance = Instance.random(0, number=float)
    drafts = sample_drafts("likely", (1,), instance, 1)
    judge = Judge(np.zeros(5, dtype=np.float32), 0.0)
    with pytest.raises(ValueError, match=r"reads hidden states of 5 numbers.* has 3; .*stages=\[judge_head\]"):
        verify_hidden(judge, instance, drafts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, r"epsilon must be in \(0, 1\)"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\)"),
        ({"next_token": "first"}, "next_token must be one of sampled, greedy"),
    ],
)
def test_a_wrong_setting_of_typical_is_named(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Typical(**settings)  # type: ignore[arg-type]

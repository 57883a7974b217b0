"""Rules on a GPU give the results of the CPU, and no distribution leaves the device, whatever the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core import SamplingParams
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.greedy_match import GreedyMatch
from decoding.speculation.acceptance.judge import Judge
from decoding.speculation.acceptance.k_sequential import KSequential
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.reduced_vocabulary import reduce_draft
from decoding.speculation.acceptance.reflective import Reflective, add_check
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.typical import Typical
from decoding.speculation.acceptance.uniform_stream import SeededUniformStream, UniformStream, Vector
from decoding.speculation.acceptance.verify import P, TreeRule
from decoding.speculation.device_probabilities import IdsOfRows, draw_tokens, read_probabilities
from decoding.speculation.draft import Draft, DraftSampling, SamplingRecord, VerifiedPath, VerifyResult
from decoding.speculation.interfaces import AcceptanceRule
from reason.config.compose import list_options
from tests.support.acceptance_rules import CAUGHT, NO, REJECTION, SAMPLING, id_of, make_target
from tests.support.enumeration import Instance, VerifyTree, draw_tree, enumerate_drafts, verify_outcomes
from tests.support.pretended_gpu import pretended_gpu

JUDGE = Judge(np.array([1.0, -2.0, 0.5], dtype=np.float32), 0.1)
LOSSY: list[AcceptanceRule] = [GreedyMatch(), Typical(), Typical(next_token="greedy"), JUDGE, Reflective()]
EVERY: list[AcceptanceRule] = [*SAMPLING, Coupled(), *LOSSY]
PAIRS = [(rule, kind) for rule in REJECTION for kind in rule.supported_sampling]
PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.3, top_k=3),
    SamplingParams(temperature=0.0),
)


def test_every_rule_is_here() -> None:
    names = {type(rule).__name__.lower() for rule in EVERY}
    assert names == {name.replace("_", "") for name in list_options("acceptance")}


# ------------------------------------------------------------------ the reduction, in fractions


def draw_from_some(
    seed: int, kind: DraftSampling, fans: Sequence[int], stream: UniformStream, number: type = Fraction
) -> tuple[Instance, Draft]:
    """An instance whose drafter knows all ids but one after each context, and a draft; its record lacks that id."""
    instance = Instance.random(seed, vocabulary=4, length=len(fans) + 1, number=number)
    q = {}
    for i, (context, q_V) in enumerate(instance.q.items()):
        q_V = q_V.copy()
        q_V[(seed + i) % 4] = number(0)
        q[context] = q_V / q_V.sum()
    return instance, drop_unknown(draw_tree(kind, fans, q, stream))


def drop_unknown(draft: Draft) -> Draft:
    record = draft.sampling_record
    assert record is not None
    draft_probs = {node: (ids[q > 0], q[q > 0]) for node, (ids, q) in record.draft_probs.items()}
    return replace(draft, sampling_record=SamplingRecord(record.sampling, record.children, draft_probs))


class RoundingStream(SeededUniformStream):
    """Draws from fractions."""

    def sample_index(self, weights_V: Vector) -> int:
        return super().sample_index(weights_V.astype(np.float64))


class Deferring:
    """A stream that keeps the weights of the last draw, over outcomes, and answers with all the others."""

    def __init__(self, stream: UniformStream) -> None:
        self.stream = stream
        self.weights_V: Vector = np.zeros(0)

    def accept_ratio(self, p: Any, q: Any = 1) -> bool:
        return self.stream.accept_ratio(p, q)

    def sample_index(self, weights_V: Vector) -> int:
        self.weights_V = weights_V
        return len(weights_V) - 1


def verify_reduced(rule: TreeRule, *, scales: bool = True) -> VerifyTree:
    """The rule over reduced vocabularies, then a draw over the whole one; without `scales` a mutant."""

    def verify_tree(draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        reduced, deferring = reduce_draft(draft), Deferring(stream)

        def p_reduced(node: int) -> Vector:
            rest_V = p(node).copy()
            rest_V[reduced.list_ids(node)] = 0
            return np.append(p(node)[reduced.list_ids(node)], rest_V.sum())

        nodes, _ = rule.verify_tree(reduced.draft, p_reduced, deferring)
        last = nodes[-1] if nodes else -1
        weights_V, others = p(last).copy(), p_reduced(last)[-1]
        if scales and others > 0:
            weights_V = weights_V * (deferring.weights_V[-1] / others)
        weights_V[reduced.list_ids(last)] = deferring.weights_V[:-1]
        return VerifiedPath(nodes, stream.sample_index(weights_V))

    return verify_tree


@pytest.mark.parametrize("fans", [(1,), (3,), (2, 1), (1, 2)])
@pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=id_of)
def test_every_path_is_as_likely_over_the_reduced_vocabulary(
    rule: TreeRule, kind: DraftSampling, fans: Sequence[int]
) -> None:
    exact = not isinstance(rule, KSequential)
    for seed in range(4):
        number = Fraction if exact else float
        instance, draft = draw_from_some(seed, kind, fans, RoundingStream(seed, 0), number)
        laws = [verify_outcomes(verify, draft, instance) for verify in (rule.verify_tree, verify_reduced(rule))]
        if exact:
            assert laws[0] == laws[1]
        else:  # its threshold is rounded up, so a refused node may be drawn: a path then ends there or goes on
            likely = [{path: chance for path, chance in law.items() if chance > 1e-6} for law in laws]
            assert likely[0] == pytest.approx(likely[1], abs=1e-6)


@pytest.mark.parametrize(("rule", "kind"), [pair for pair in PAIRS if not isinstance(pair[0], KSequential)], ids=id_of)
def test_the_reduced_rule_is_lossless_and_the_test_would_see_it_if_not(rule: TreeRule, kind: DraftSampling) -> None:
    def law_distance(verify_tree: VerifyTree, seed: int) -> float:
        instance, _ = draw_from_some(seed, kind, (2,), RoundingStream(0, 0))
        return enumerate_drafts(
            instance, lambda stream: draw_from_some(seed, kind, (2,), stream)[1], verify_tree
        ).distance

    assert all(law_distance(verify_reduced(rule), seed) == 0 for seed in range(4))
    assert max(law_distance(verify_reduced(rule, scales=False), seed) for seed in range(4)) > CAUGHT


# ------------------------------------------------------------------ results and copies, on a pretended GPU


def draw_drafts(rule: AcceptanceRule, instance: Instance, count: int) -> list[Draft]:
    """Drafts that the rule supports; every third one is empty."""
    kind = NO if NO in rule.supported_sampling else rule.supported_sampling[0]
    drafts = [
        Draft() if i % 3 == 2 else drop_unknown(draw_tree(kind, (2, 2), instance.q, SeededUniformStream(i, 7)))
        for i in range(count)
    ]
    return [add_check(draft, (0, 1)) for draft in drafts] if isinstance(rule, Reflective) else drafts


def verify_random(
    rule: AcceptanceRule, params: SamplingParams, *, device: str, vocabulary: int = 5, count: int = 60
) -> list[VerifyResult]:
    """The results over random drafts of five ids; further ids of the vocabulary have probability 0."""
    instance = Instance.random(3, vocabulary=5, length=3, number=float)
    if isinstance(rule, Reflective):  # the second reading is deeper
        instance = Instance.random(3, vocabulary=5, length=7, number=float)
    drafts = draw_drafts(rule, instance, count)
    branches, target = make_target(instance, drafts, params)
    logits_WV = torch.nn.functional.pad(target.logits_WV, (0, vocabulary - 5), value=-1e4)
    hidden_WD = torch.randn(len(logits_WV), 3, generator=torch.Generator().manual_seed(1))
    target = replace(target, logits_WV=logits_WV.to(device), hidden_WD=hidden_WD.to(device), feedback_k=4)
    results = rule.verify_drafts(branches, drafts, target)
    assert target.top_logprobs[0].shape == (len(logits_WV), 4)
    return results


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("rule", EVERY, ids=id_of)
def test_results_are_those_of_the_cpu(
    rule: AcceptanceRule, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = verify_random(rule, params, device="cpu")
    with pretended_gpu(monkeypatch):
        results = verify_random(rule, params, device="cuda")
    assert [one.tokens for one in results] == [one.tokens for one in expected]
    assert [one.accepted_nodes for one in results] == [one.accepted_nodes for one in expected]
    np.testing.assert_allclose(
        [logprob for one in results for logprob in one.logprobs],
        [logprob for one in expected for logprob in one.logprobs],
        rtol=1e-6,
    )
    assert params.temperature == 0 or any(one.accepted_nodes for one in results)


@pytest.mark.parametrize("rule", EVERY, ids=id_of)
def test_what_comes_to_the_host_does_not_grow_with_the_vocabulary(
    rule: AcceptanceRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, waits, params = [], [], SamplingParams(temperature=0.9)
    for vocabulary in (5, 20_000):
        with pretended_gpu(monkeypatch) as gpu:
            verify_random(rule, params, device="cuda", vocabulary=vocabulary, count=6)
        numbers.append(gpu.numbers_to_host)
        waits.append(gpu.copies_to_host)
    assert numbers[0] == numbers[1] < 2_000
    assert waits == [2, 2] if rule in REJECTION else waits == [1, 1]


@pytest.mark.parametrize(("params", "more"), [(PARAMS[1], 1), (PARAMS[2], 0)])
def test_filters_by_mass_wait_once_more(params: SamplingParams, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the ids that are ranked are all that a filter keeps; with top-k that is known. One flag a row."""
    with pretended_gpu(monkeypatch) as gpu:
        verify_random(Traversal(), params, device="cuda", vocabulary=3_000, count=6)
    assert gpu.copies_to_host == 2 + more
    assert gpu.numbers_to_host < 2_000


@pytest.mark.parametrize("rule", [*REJECTION, PointMass()], ids=id_of)
def test_rounds_without_drafts_wait_once(rule: TreeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance.random(0, vocabulary=5, length=1, number=float)
    drafts = [Draft()] * 20
    expected = rule.verify_drafts(*(made := make_target(instance, drafts, SamplingParams()))[:1], drafts, made[1])
    with pretended_gpu(monkeypatch) as gpu:
        branches, target = make_target(instance, drafts, SamplingParams())
        results = rule.verify_drafts(branches, drafts, replace(target, logits_WV=target.logits_WV.to("cuda")))
        assert gpu.copies_to_host == 1
    assert [one.tokens for one in results] == [one.tokens for one in expected]


def test_a_rule_that_reads_the_vocabulary_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rule of a plug-in may: it says nothing of what it reads."""

    class TakeBest(TreeRule):
        supported_sampling = GreedyMatch.supported_sampling
        needs_sampling_record = False

        def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
            return draft.follow_path(lambda node: int(p(node).argmax()))

    with pretended_gpu(monkeypatch):
        results = verify_random(TakeBest(), SamplingParams(), device="cuda", vocabulary=300)
    expected = verify_random(GreedyMatch(), SamplingParams(), device="cpu")
    assert [one.tokens for one in results] == [one.tokens for one in expected]


# ------------------------------------------------------------------ numbers on the device


def test_probabilities_and_draws_of_many_rows() -> None:
    """More than are in memory at a time: the rows of the second part have their own ids."""
    torch.manual_seed(0)
    rows, vocabulary = [10, 0, 3, 4, 5, 6, 7, 8, 9, 1], 1 << 20
    log_p_WV = torch.randn(11, vocabulary).mul_(3).log_softmax(-1)
    ids = [np.array(of_row, dtype=np.int64) for of_row in ([5, 9], [], [1], [2], [], [], [], [4, 3], [8], [7, 1, 2])]
    listed = IdsOfRows.collect(rows, ids)
    p_N, others_R = (tensor.numpy() for tensor in read_probabilities(log_p_WV, listed))
    p_RV = log_p_WV[rows].double().exp().numpy()
    p_RV /= p_RV.sum(-1, keepdims=True)
    np.testing.assert_allclose(p_N, [p_RV[row, i] for row, of_row in enumerate(ids) for i in of_row])
    weights_N, scales_R = np.linspace(0.01, 0.1, len(p_N)), np.linspace(0.5, 2, len(rows))
    uniforms_R = np.random.default_rng(0).random(len(rows))
    tokens = draw_tokens(log_p_WV, listed, weights_N, scales_R, uniforms_R).tolist()
    at = 0
    for row, of_row in enumerate(ids):
        assert others_R[row] == pytest.approx(1 - p_RV[row, of_row].sum())
        weights_V = p_RV[row] * scales_R[row]
        weights_V[of_row] = weights_N[at : at + len(of_row)]
        at += len(of_row)
        cumulative = weights_V.cumsum()
        assert tokens[row] == np.searchsorted(cumulative, uniforms_R[row] * cumulative[-1], side="right")


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 2.0**-53])
def test_a_token_of_weight_zero_is_never_drawn(uniform: float) -> None:
    p_WV = torch.tensor([[0.0, 0.25, 0.0, 0.25, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0, 0, 0, 0]])
    ids = [np.array([4]), np.zeros(0, dtype=np.int64), np.array([0, 1, 5])]
    listed = IdsOfRows.collect([0, 1, 2], ids)
    tokens = draw_tokens(
        p_WV.log(), listed, np.array([0.0, 0.0, 1e-310, 0.0]), np.array([1.0, 1.0, 0.0]), np.full(3, uniform)
    )
    assert tokens[0] in (1, 3)
    assert tokens.tolist()[1:] == [3, 1]


def test_nothing_else_is_exactly_nothing() -> None:
    p_WV = torch.tensor([[0.1, 0.2, 0.0, 0.7]])
    _, others_R = read_probabilities(p_WV.log(), IdsOfRows.collect([0], [np.array([3, 0, 1])]))
    assert others_R.tolist() == [0.0]
